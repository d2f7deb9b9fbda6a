//! Jobs from beginning to end, as a user runs them.

use std::fs;

use serde_json::Value;

use crate::support::{Place, golden, stderr};

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("no number {key} in {value}"))
}

fn golden_json(relative: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(golden(relative)).unwrap()).unwrap()
}

#[test]
fn eval_gives_the_losses_of_the_goldens() {
    let place = Place::new();
    let data = golden("train/lora-sft/data.jsonl");
    // Not `llama-dynamic-rope`: transformers keeps the longest length it has seen, so that its loss of a conversation
    // depends on the ones before; here each sequence has its own (docs/verification.md).
    for name in ["llama", "llama-tied-bias", "llama3-rope", "llama-yarn-rope", "qwen2"] {
        let expected = number(&golden_json(&format!("models/{name}/golden.json")), "chat_loss");
        for (backend, batch) in [("flex", 4), ("ndarray", 1)] {
            if backend == "ndarray" && !cfg!(feature = "ndarray") {
                continue;
            }
            let model = golden(&format!("models/{name}"));
            let found = place.json(&format!(
                "eval --json --model {} --data {} --backend {backend} --batch-size {batch}",
                model.display(),
                data.display()
            ));
            let loss = number(&found, "loss");
            assert!((loss - expected).abs() <= 1e-5 * expected, "{name}: {loss} not {expected}");
            assert_eq!(found["examples"], 6);
            assert_eq!(found["supervised_tokens"], 102);
        }
    }
    for name in ["lora-all", "lora-qv-qwen2"] {
        let expected = golden_json(&format!("adapters/{name}/golden.json"));
        let found = place.json(&format!(
            "eval --json --model {} --adapter {} --data {} --backend flex",
            golden(&format!("models/{}", expected["base"].as_str().unwrap())).display(),
            golden(&format!("adapters/{name}")).display(),
            data.display()
        ));
        let (loss, expected) = (number(&found, "loss"), number(&expected, "chat_loss"));
        assert!((loss - expected).abs() <= 1e-5 * expected, "{name}: {loss} not {expected}");
    }
}

#[test]
fn a_fine_tune_from_data_to_merged_model() {
    let place = Place::new();
    let data = golden("train/lora-sft/data.jsonl");
    place.succeed(&format!(
        "train --quiet --model model --data {0} --eval {0} --out run --backend flex \
         --set train.steps=40 --set train.learning_rate=1e-2 --set train.save_every=15 \
         --set train.keep_last=1 --set lora.r=8 --set lora.dropout=0.1",
        data.display()
    ));
    let eval = |more: &str| {
        number(
            &place.json(&format!("eval --json --data {} --backend flex {more}", data.display())),
            "loss",
        )
    };
    let (before, after) = (eval("--model model"), eval("--model model --adapter run"));
    assert!(after < 0.5 * before, "{before} → {after}");

    // What the run logged is what eval finds.
    let rows: Vec<Value> = place
        .read("run/metrics.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let steps: Vec<&Value> = rows.iter().filter(|row| row.get("loss").is_some()).collect();
    assert_eq!(steps.len(), 40);
    for key in ["epoch", "grad_norm", "learning_rate", "supervised_tokens", "tokens_per_s"] {
        assert!(number(steps[39], key) >= 0.0);
    }
    let evals: Vec<f64> =
        rows.iter().filter_map(|row| row.get("eval_loss")).map(|v| v.as_f64().unwrap()).collect();
    assert!((evals[0] - before).abs() < 1e-5 * before && (evals[1] - after).abs() < 1e-5 * after);

    // keep_last = 1 of the checkpoints after 15 and 30 steps.
    assert!(!place.path("run/checkpoint-15").exists());
    assert!(place.path("run/checkpoint-30/adapter_model.safetensors").exists());

    // The adapter answers in the template, and so does the merged model.
    let answer = |more: &str| {
        place.json(&format!(
            "generate --json --backend flex --max-new-tokens 24 {more} --prompt hot?"
        ))
    };
    let with_adapter = answer("--model model --adapter run");
    place.succeed("merge --model model --adapter run --out merged --dtype f32 --backend flex");
    let merged = eval("--model merged");
    assert!((merged - after).abs() < 1e-5 * after, "{after} → {merged}");
    assert_eq!(answer("--model merged")["ids"], with_adapter["ids"]);

    // Resolved settings: running them again gives the same bits.
    let again = place.read("run/config.toml").replace("/run\"", "/again\"");
    place.write("again.toml", again);
    place.succeed("train again.toml --quiet");
    let weights =
        |run: &str| fs::read(place.path(&format!("{run}/adapter_model.safetensors"))).unwrap();
    assert!(weights("run") == weights("again"), "the same run, bit for bit");
}

#[test]
fn the_chosen_optimizer_is_used() {
    let place = Place::new();
    let data = golden("train/lora-sft/data.jsonl");
    place.write(
        "run.toml",
        format!(
            "[model]\npath = \"model\"\nbackend = \"flex\"\n[data]\ntrain = [{data:?}]\n\
             [train]\nsteps = 6\nmicro_batch_size = 2\nlearning_rate = 1e-3\n"
        ),
    );
    let losses = |run: &str, optimizer: &str| -> Vec<f64> {
        place.succeed(&format!(
            "train run.toml --quiet --out {run} --set train.optimizer={optimizer}"
        ));
        let rows = place.read(&format!("{run}/metrics.jsonl"));
        rows.lines().map(|row| number(&serde_json::from_str(row).unwrap(), "loss")).collect()
    };
    let (exact, coded) = (losses("a", "adamw"), losses("b", "adamw8bit"));
    // The first step's moments are coded after it has moved the weights.
    assert_eq!(exact[..2], coded[..2]);
    assert_ne!(exact, coded);
    for (exact, coded) in exact.iter().zip(&coded) {
        assert!((exact - coded).abs() < 0.02 * exact, "{exact} in 32 bits, {coded} in 8");
    }
    assert_eq!(coded, losses("c", "adamw8bit"), "the same run, bit for bit");
    let output = place.run("train run.toml --out d --set train.optimizer=adam8bit");
    assert!(stderr(&output).contains("did you mean `adamw8bit`?"), "{}", stderr(&output));
}

#[test]
fn the_date_of_templates_is_fixed_by_the_run() {
    let place = Place::new();
    let template = place.read("model/chat_template.jinja");
    place.write(
        "model/chat_template.jinja",
        format!("{{{{ strftime_now('%d %b %Y') }}}}{template}"),
    );
    let train = |run: &str, more: &str| {
        place.succeed(&format!(
            "train --quiet --model model --data rows.jsonl --out {run} --backend flex {more} \
             --set train.steps=1 --set lora.r=4"
        ));
        let row = place.read(&format!("{run}/metrics.jsonl"));
        number(&serde_json::from_str(row.lines().next().unwrap()).unwrap(), "loss")
    };
    let july = train("july", "--set data.date=2024-07-26");
    assert!(place.read("july/config.toml").contains("date = \"2024-07-26\""));
    assert_ne!(july, train("march", "--set data.date=2031-03-09"));

    // Not given, it is the day of the first run, which the resolved configuration keeps.
    train("today", "");
    let config = place.read("today/config.toml");
    let date = config.lines().find_map(|line| line.strip_prefix("date = ")).unwrap();
    assert_eq!(date.len(), "\"2024-07-26\"".len(), "{date}");
}

#[test]
fn a_dry_run_writes_nothing() {
    let place = Place::new();
    place.succeed("train --dry-run --quiet --model model --data rows.jsonl --out run");
    assert!(!place.path("run").exists());
}

#[test]
fn chat_answers_turn_by_turn() {
    use std::io::Write;
    use std::process::Stdio;
    let place = Place::new();
    let mut child = place
        .command("chat --model model --backend flex --max-new-tokens 3")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"hello\nand again\n/reset\nhello\n/exit\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    // An answer may hold a line break of its own, so whole outputs are compared.
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let first =
        place.succeed("generate --model model --backend flex --max-new-tokens 3 --prompt hello");
    assert!(text.starts_with(&first), "{text:?} begins with {first:?}");
    assert!(text.ends_with(&first), "after /reset the first answer comes again: {text:?}");
    assert!(text.len() > 2 * first.len(), "three answers: {text:?}");
}

#[cfg(unix)]
#[test]
fn ctrl_c_saves_and_exits_cleanly() {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};
    let place = Place::new();
    let mut child = place
        .command("train --quiet --model model --data rows.jsonl --out run --backend flex --set train.steps=100000")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let started = Instant::now();
    let metrics = place.path("run/metrics.jsonl");
    while fs::metadata(&metrics).map_or(0, |m| m.len()) == 0 {
        assert!(started.elapsed() < Duration::from_secs(60), "no step within a minute");
        std::thread::sleep(Duration::from_millis(20));
    }
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(0));
    let steps = place.read("run/metrics.jsonl").lines().count();
    assert!((1..100_000).contains(&steps));
    place.succeed("eval --model model --adapter run --data rows.jsonl --backend flex");
}

#[test]
fn usage_errors_exit_with_2() {
    let place = Place::new();
    for command_line in ["", "trian", "eval", "eval --model model --data a --batch-size 0"] {
        assert_eq!(place.run(command_line).status.code(), Some(2), "{command_line:?}");
    }
}

#[test]
fn plan_estimates_memory_and_proposes_settings() {
    let place = Place::new();
    let data = golden("train/lora-sft/data.jsonl");
    let run = format!("--model model --data {} --backend flex --set lora.r=4", data.display());
    let need = place.json(&format!("plan --json {run}"));
    assert_eq!(need["fits"], true);
    let parts = need["parts"].as_object().unwrap();
    let sum: u64 = parts.values().map(|bytes| bytes.as_u64().unwrap()).sum();
    assert_eq!(need["total"], sum);
    // 4 rows of the longest example, and the model's weights in f32, to the byte.
    assert_eq!(need["rows"], 4);
    let file = fs::metadata(golden("models/llama/model.safetensors")).unwrap().len();
    let weights = parts["weights"].as_u64().unwrap();
    assert!(weights < file && file < weights + 10_000, "{weights} of a file of {file}");
    assert!(!place.path("runs").exists(), "a plan writes nothing");

    let output = place.run(&format!("plan {run} --memory 1MiB"));
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stdout);
    let place_of = |what: &str| text.find(what).unwrap_or_else(|| panic!("no {what} in {text}"));
    let [first, second, third] =
        ["train.micro_batch_size=1", "train.recompute=block", "model.quant=nf4"].map(place_of);
    assert!(first < second && second < third, "{text}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("requires about"));
}

#[test]
fn a_closed_pipe_does_not_end_a_run() {
    let place = Place::new();
    let mut child = place
        .command(
            "train --model model --data rows.jsonl --out run --backend flex --set train.steps=2",
        )
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // Both pipes are closed before the first output.
    drop(child.stdout.take());
    drop(child.stderr.take());
    assert!(child.wait().unwrap().success());
    assert!(place.path("run/adapter_model.safetensors").exists());
    let full = fs::OpenOptions::new().write(true).open("/dev/full");
    if let Ok(full) = full {
        let mut command =
            place.command("eval --json --model model --data rows.jsonl --backend flex");
        let output = command.stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "a result that is lost is an error");
        assert!(stderr(&output).contains("standard output"), "{}", stderr(&output));
    }
}
