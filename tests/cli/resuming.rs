//! Law 5: a run that is killed anywhere and resumed equals an uninterrupted one, bit for bit.
//!
//! `EMBERLM_KILLS` sets how many kills each backend gets; the default is few, for every day.

use std::fs;
use std::process::{Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;

use crate::support::{Place, golden, stderr};

/// A run with everything that has a state: dropout, accumulation, shuffling over several epochs, clipping, evaluations.
fn run_toml(backend: &str, out: &str, more: &str) -> String {
    let data = golden("train/lora-sft/data.jsonl");
    format!(
        "[model]\npath = \"model\"\nbackend = \"{backend}\"\n\
         [lora]\nr = 4\ndropout = 0.1\n\
         [data]\ntrain = [{data:?}]\neval = [{data:?}]\nprompts = [\"hot?\"]\n\
         [train]\noutput_dir = \"{out}\"\nmicro_batch_size = 2\ngrad_accumulation = 2\n\
         learning_rate = 1e-2\nschedule = \"cosine\"\nwarmup_steps = 3\n{more}\n"
    )
}

fn adapter(place: &Place, run: &str) -> Vec<u8> {
    fs::read(place.path(&format!("{run}/adapter_model.safetensors"))).unwrap()
}

/// The rows of a file without what depends on the clock.
fn rows(place: &Place, file: &str) -> Vec<Value> {
    let timeless = |line: &str| {
        let mut row: Value = serde_json::from_str(line).unwrap();
        for key in ["tokens_per_s", "peak_memory_mib"] {
            row.as_object_mut().unwrap().remove(key);
        }
        row
    };
    place.read(file).lines().map(timeless).collect()
}

fn kills() -> usize {
    std::env::var("EMBERLM_KILLS").map_or(3, |kills| kills.parse().unwrap())
}

/// Runs the command line until it succeeds; each time but the last ones it is killed after a random while.
fn killed_and_resumed(place: &Place, command_line: &str, kills: usize, whole: Duration, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let (mut done, mut started) = (0, 0);
    loop {
        let mut command = place.command(command_line);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        started += 1;
        assert!(started < 20 * kills + 20, "it gets nowhere");
        if done < kills {
            thread::sleep(whole.mul_f64(random.random_range(0.0..1.2)));
            if child.try_wait().unwrap().is_none() {
                child.kill().unwrap();
                child.wait().unwrap();
                done += 1;
                continue;
            }
        }
        let output: Output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        if done >= kills {
            break;
        }
        // It finished before it could be killed: start again, so that every kill hits a run.
        fs::remove_dir_all(place.path("killed")).unwrap();
    }
}

fn law_5(backend: &str, more: &str) {
    let place = Place::new();
    place.write("whole.toml", run_toml(backend, "whole", more));
    place.write("killed.toml", run_toml(backend, "killed", more));
    let started = Instant::now();
    place.succeed("train whole.toml --quiet");
    let whole = started.elapsed();
    let started = Instant::now();
    let kills = kills();
    killed_and_resumed(&place, "train killed.toml --quiet --resume", kills, whole, 7);
    let all = started.elapsed();
    // The cost of a kill, shown by: cargo test -- --nocapture.
    println!("{backend}: {whole:.2?} at once; {kills} kills, {all:.2?} in all");
    assert!(adapter(&place, "whole") == adapter(&place, "killed"), "the same bits");
    for file in ["metrics.jsonl", "samples.jsonl"] {
        let of = |run: &str| rows(&place, &format!("{run}/{file}"));
        assert_eq!(of("whole"), of("killed"), "{file}");
    }
    let left = fs::read_dir(place.path("killed")).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains("tmp")), "{left:?}");
}

#[test]
fn a_killed_run_equals_an_uninterrupted_one_on_flex() {
    law_5("flex", "steps = 40\nsave_every = 3\neval_every = 5");
}

#[test]
#[cfg(feature = "ndarray")]
fn a_killed_run_equals_an_uninterrupted_one_on_ndarray() {
    law_5("ndarray", "steps = 16\nsave_every = 2\neval_every = 4\nweight_decay = 0.1");
}

#[test]
fn a_run_that_saves_every_step_survives_kills() {
    law_5("flex", "steps = 12\nsave_every = 1\neval_every = 1\nkeep_last = 1");
}

#[test]
fn added_tokens_noise_and_packing_resume_exactly() {
    let place = Place::new();
    let toml = |out: &str| {
        run_toml("flex", out, "steps = 7\nsave_every = 4\nneftune_alpha = 5.0")
            .replace("[lora]", "add_tokens = [\"<hot>\", \"<cold>\"]\n[lora]")
            .replace("[train]", "packing = true\nmax_length = 128\n[train]")
    };
    place.write("whole.toml", toml("whole"));
    place.write("half.toml", toml("half"));
    place.succeed("train whole.toml --quiet");
    place.succeed("train half.toml --quiet");
    // As if it had been killed after its fourth step.
    fs::remove_dir_all(place.path("half/checkpoint-7")).unwrap();
    fs::remove_file(place.path("half/adapter_model.safetensors")).unwrap();
    place.succeed("train half.toml --quiet --resume");
    assert!(adapter(&place, "whole") == adapter(&place, "half"), "the same bits");
    assert_eq!(rows(&place, "whole/metrics.jsonl"), rows(&place, "half/metrics.jsonl"));
}

#[test]
fn full_fine_tuning_and_8_bit_moments_resume_exactly() {
    let place = Place::new();
    let toml = |out: &str, steps: u64, schedule_steps: &str| {
        run_toml("flex", out, &format!("steps = {steps}\n{schedule_steps}"))
            .replace("[lora]\nr = 4\ndropout = 0.1\n", "")
            .replace("learning_rate = 1e-2", "optimizer = \"adamw8bit\"\nlearning_rate = 1e-3")
            .replace("cosine", "constant")
    };
    place.write("whole.toml", toml("whole", 8, "save_every = 5"));
    place.succeed("train whole.toml --quiet");
    place.write("half.toml", toml("half", 5, "save_every = 5"));
    place.succeed("train half.toml --quiet");
    place.write("half.toml", toml("half", 8, "save_every = 5"));
    place.succeed("train half.toml --quiet --resume --allow-changes");
    let model = |run: &str| fs::read(place.path(&format!("{run}/model.safetensors"))).unwrap();
    assert!(model("whole") == model("half"), "the same bits");
}

/// A run of ten steps that was stopped after its sixth, in `run/`, and the uninterrupted one, in `whole/`.
struct Stopped {
    place: Place,
}

const TEN: &str = "steps = 10\nsave_every = 3\neval_every = 5\nkeep_last = false";

impl Stopped {
    fn new() -> Self {
        let place = Place::new();
        fs::copy(golden("train/lora-sft/data.jsonl"), place.path("data.jsonl")).unwrap();
        let own = |toml: String| {
            toml.replace(&format!("{:?}", golden("train/lora-sft/data.jsonl")), "\"data.jsonl\"")
        };
        place.write("whole.toml", own(run_toml("flex", "whole", TEN)));
        place.write("run.toml", own(run_toml("flex", "run", TEN)));
        place.succeed("train whole.toml --quiet --set data.date=2020-02-02");
        place.succeed("train run.toml --quiet --set data.date=2020-02-02");
        // As if it had been killed after step 7: later checkpoints and the result are not there.
        for gone in ["checkpoint-9", "checkpoint-10"] {
            fs::remove_dir_all(place.path(&format!("run/{gone}"))).unwrap();
        }
        fs::remove_file(place.path("run/adapter_model.safetensors")).unwrap();
        fs::rename(place.path("run"), place.path("was")).unwrap();
        let stopped = Self { place };
        stopped.put_back();
        stopped
    }

    /// The folder as it was when the run was stopped.
    fn put_back(&self) {
        let (from, to) = (self.place.path("was"), self.place.path("run"));
        if to.exists() {
            fs::remove_dir_all(&to).unwrap();
        }
        copy(&from, &to);
    }

    fn resumes(&self, command_line: &str) -> String {
        let output = self.place.run(command_line);
        assert!(output.status.success(), "{command_line}: {}", stderr(&output));
        stderr(&output)
    }

    fn refuses(&self, command_line: &str, expected: &[&str]) {
        let output = self.place.run(command_line);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{command_line}: {said}");
        for text in expected {
            assert!(said.contains(text), "{command_line}: no {text:?} in {said}");
        }
        let (left, was) = (list(&self.place.path("run")), list(&self.place.path("was")));
        assert_eq!(left, was, "{command_line}: nothing has changed");
    }

    fn equals_the_whole(&self, run: &str) {
        assert!(adapter(&self.place, run) == adapter(&self.place, "whole"), "the same bits");
    }
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

fn list(folder: &std::path::Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

#[test]
fn settings_that_do_not_change_the_steps_may_change() {
    let run = Stopped::new();
    let said = run.resumes(
        "train run.toml --resume --set train.log_every=2 --set train.eval_every=4 \
         --set train.threads=1 --set train.keep_last=1 --set train.recompute=block",
    );
    for text in
        ["from step 6", "train.eval_every: 5 → 4", "train.recompute: \"selective\" → \"block\""]
    {
        assert!(said.contains(text), "{said}");
    }
    run.equals_the_whole("run");
    // The day is the one that the run began with.
    assert!(run.place.read("run/config.toml").contains("date = \"2020-02-02\""));

    // Moved, and without its configuration file.
    fs::rename(run.place.path("was"), run.place.path("moved")).unwrap();
    fs::remove_file(run.place.path("run.toml")).unwrap();
    run.resumes("train --resume=moved --quiet");
    run.equals_the_whole("moved");
}

#[test]
fn settings_that_change_the_steps_need_allow_changes() {
    let run = Stopped::new();
    let changed =
        "train run.toml --quiet --resume --set train.learning_rate=5e-3 --set train.seed=3";
    run.refuses(
        changed,
        &["train.learning_rate: 0.01 → 0.005", "train.seed: 0 → 3", "--allow-changes"],
    );
    run.resumes(&format!("{changed} --allow-changes"));
    assert!(adapter(&run.place, "run") != adapter(&run.place, "whole"));
    run.put_back();
    run.resumes("train run.toml --quiet --resume --allow-changes --set train.optimizer=adamw8bit");
}

#[test]
fn other_ranks_data_or_bases_are_always_refused() {
    let run = Stopped::new();
    let resume = "train run.toml --quiet --resume --allow-changes";
    run.refuses(&format!("{resume} --set lora.r=8"), &["lora.r: 4 → 8", "lora.init_from"]);
    let data = run.place.read("data.jsonl");
    run.place.write("data.jsonl", data.replacen("hot", "cold", 1));
    run.refuses(resume, &["the data changed since", "checkpoint-6"]);
    run.place.write("data.jsonl", &data);
    let weights = fs::read(run.place.path("model/model.safetensors")).unwrap();
    let mut other = weights.clone();
    *other.last_mut().unwrap() ^= 1;
    run.place.write("model/model.safetensors", &other);
    run.refuses(resume, &["the base model changed since", "checkpoint-6"]);
    run.place.write("model/model.safetensors", &weights);
    fs::remove_file(run.place.path("data.jsonl")).unwrap();
    run.refuses(resume, &["data.jsonl"]);
    run.place.write("data.jsonl", &data);
    run.refuses(&format!("{resume} --set train.steps=5"), &["is at step 6", "last step 5"]);
    run.resumes("train run.toml --quiet --resume");
    run.equals_the_whole("run");
}

#[test]
fn a_damaged_checkpoint_is_reported_and_skipped() {
    let run = Stopped::new();
    let moments = run.place.path("run/checkpoint-6/optimizer.safetensors");
    let whole = fs::read(&moments).unwrap();
    fs::write(&moments, &whole[..whole.len() / 2]).unwrap();
    let said = run.resumes("train run.toml --resume");
    for text in
        ["checkpoint-6", "the checksum of optimizer.safetensors does not match", "from step 5"]
    {
        assert!(said.contains(text), "no {text:?} in {said}");
    }
    run.equals_the_whole("run");
    // All of them: then from the beginning.
    run.put_back();
    for step in [3, 5, 6] {
        let sums = run.place.path(&format!("run/checkpoint-{step}/checksums.xxh128"));
        fs::remove_file(sums).unwrap();
    }
    let said = run.resumes("train run.toml --resume");
    assert!(said.contains("from the beginning") && said.contains("never completed"), "{said}");
    run.equals_the_whole("run");
    assert!(run.place.path("run/checkpoint-6.damaged").is_dir());
    // A finished run without checkpoints isn't repeated.
    run.put_back();
    for step in [3, 5, 6] {
        fs::remove_dir_all(run.place.path(&format!("run/checkpoint-{step}"))).unwrap();
    }
    run.place.write("run/adapter_model.safetensors", "a result");
    let output = run.place.run("train run.toml --resume");
    assert!(stderr(&output).contains("this folder already holds a run"), "{}", stderr(&output));
}

#[test]
fn an_older_checkpoint_resumes_in_another_folder() {
    let run = Stopped::new();
    run.refuses(
        "train run.toml --quiet --resume=run/checkpoint-3",
        &["newer checkpoints", "step 5, step 6", "--out"],
    );
    run.resumes("train run.toml --quiet --resume=run/checkpoint-3 --out other");
    run.equals_the_whole("other");
    let steps = |run_name: &str| rows(&run.place, &format!("{run_name}/metrics.jsonl"));
    assert_eq!(steps("other"), steps("whole"));
    for (path, expected) in [("nothing", "found none"), ("model", "found none")] {
        run.refuses(&format!("train --quiet --resume={path}"), &[expected]);
    }
    run.refuses("train run.toml --quiet --resume=model", &["expected a checkpoint"]);
}

#[test]
fn a_finished_run_is_left_unchanged() {
    let run = Stopped::new();
    let before = run.place.read("whole/metrics.jsonl");
    run.resumes("train whole.toml --quiet --resume");
    assert_eq!(run.place.read("whole/metrics.jsonl"), before);
    run.resumes("train run.toml --quiet --resume");
    run.equals_the_whole("run");
}

#[test]
#[cfg(unix)]
fn an_interrupted_run_saves_and_resumes() {
    let place = Place::new();
    let more = "steps = 400\nsave_every = 1000";
    place.write("whole.toml", run_toml("flex", "whole", more));
    place.write("run.toml", run_toml("flex", "run", more));
    place.succeed("train whole.toml --quiet");
    let mut child = place.command("train run.toml --quiet").stdout(Stdio::null()).spawn().unwrap();
    while fs::metadata(place.path("run/metrics.jsonl")).map_or(0, |file| file.len()) < 2000 {
        assert!(child.try_wait().unwrap().is_none(), "it was over too early");
        thread::sleep(Duration::from_millis(5));
    }
    // While it runs, nobody else may.
    let output = place.run("train run.toml --quiet --resume");
    let said = stderr(&output);
    assert!(said.contains(&format!("another process ({})", child.id())), "{said}");
    let stop = std::process::Command::new("kill").arg(child.id().to_string()).status().unwrap();
    assert!(stop.success() && child.wait().unwrap().success());
    let checkpoints = list(&place.path("run"));
    assert_eq!(checkpoints.iter().filter(|name| name.starts_with("checkpoint-")).count(), 1);
    place.succeed("train run.toml --quiet --resume");
    assert!(adapter(&place, "whole") == adapter(&place, "run"), "the same bits");
}

#[test]
#[cfg(unix)]
fn a_full_disk_loses_no_checkpoint() {
    let run = Stopped::new();
    // No file may grow beyond 8 blocks of 512 bytes; the signal is ignored, so that the write fails as on a full disk.
    let shell = |command_line: &str| {
        let binary = env!("CARGO_BIN_EXE_emberlm");
        let limited = format!("trap '' XFSZ; ulimit -f 8; exec {binary} {command_line}");
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &limited]).current_dir(run.place.folder.path()).output().unwrap()
    };
    let output = shell("train run.toml --quiet --resume");
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("Earlier checkpoints are intact"), "{said}");
    assert!(said.contains("--resume=") && said.contains("checkpoint-6"), "{said}");
    run.resumes("train run.toml --quiet --resume");
    run.equals_the_whole("run");
    // A folder that can't be written is found out before anything is computed.
    run.put_back();
    run.refuses("train run.toml --quiet --out data.jsonl/run", &["data.jsonl"]);
}

#[test]
fn a_run_is_reproduced_from_its_manifest() {
    let place = Place::new();
    fs::copy(golden("train/lora-sft/data.jsonl"), place.path("data.jsonl")).unwrap();
    place.succeed(
        "train --quiet --model model --data data.jsonl --eval data.jsonl --out run --backend flex \
         --set train.steps=4",
    );
    let manifest: Value = serde_json::from_str(&place.read("run/run.json")).unwrap();
    assert_eq!(manifest["result"]["steps"], 4);
    assert_eq!(manifest["data"]["files"][0]["name"], "data.jsonl");
    let said = place.succeed("reproduce run --quiet");
    assert!(said.contains("are unchanged") && said.contains("identical weights"), "{said}");
    assert!(adapter(&place, "run") == adapter(&place, "run-again"));

    let refuses = |command_line: &str, expected: &[&str]| {
        let output = place.run(command_line);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{command_line}: {said}");
        for text in expected {
            assert!(said.contains(text), "{command_line}: no {text:?} in {said}");
        }
    };
    refuses("reproduce run --quiet", &["this folder already holds a run"]);
    let data = place.read("data.jsonl");
    place.write("data.jsonl", data.replacen("hot", "cold", 1));
    refuses("reproduce run/run.json --out b --quiet", &["data: data.jsonl changed"]);
    refuses("reproduce run --out b --quiet --anyway", &["new weights differ", "adapter_model"]);
    refuses("reproduce model", &["run.json"]);
    place.write("run/run.json", "{}");
    refuses("reproduce run", &["expected the run.json"]);
}

#[test]
fn each_stage_starts_from_the_previous_result() {
    let place = Place::new();
    let stages = "[[stage]]\nname = \"adapters\"\n\
         [[stage]]\nname = \"mlp\"\nlora = false\n[stage.train]\ntrainable = [\"mlp\"]\nlearning_rate = 1e-3\n\
         [[stage]]\nname = \"all\"\nlora = false\n[stage.train]\nsteps = 3\nlearning_rate = 1e-4\n";
    let more = format!("steps = 5\nsave_every = 2\n{stages}");
    place.write("whole.toml", run_toml("flex", "whole", &more));
    place.write("killed.toml", run_toml("flex", "killed", &more));
    let started = Instant::now();
    place.succeed("train whole.toml --quiet");
    let whole = started.elapsed();
    let model =
        |run: &str| fs::read(place.path(&format!("{run}/3-all/model.safetensors"))).unwrap();
    // Each starts at the loss of the previous one.
    let first = |run: &str| rows(&place, &format!("whole/{run}/metrics.jsonl"));
    let loss = |row: &Value| row["eval_loss"].as_f64().unwrap();
    for (before, after) in [("1-adapters", "2-mlp"), ("2-mlp", "3-all")] {
        let (end, begin) = (loss(first(before).last().unwrap()), loss(&first(after)[0]));
        assert!((end - begin).abs() < 1e-4 * end, "{before}: {end}, {after}: {begin}");
    }
    killed_and_resumed(&place, "train killed.toml --quiet --resume", kills(), whole, 3);
    assert!(model("whole") == model("killed"), "the same bits");
    let said = stderr(&place.run("train whole.toml --resume"));
    assert_eq!(said.matches("is already finished").count(), 3, "{said}");
}
