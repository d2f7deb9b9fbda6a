//! Steps that look wrong, runs without progress, and what is shown of a run's inside.

use serde_json::Value;

use crate::support::{CONVERSATION, Place, stderr};

const ODD: &str = r#"{"messages":[{"role":"user","content":"How hot?"},{"role":"assistant","content":"zq#x@@ ~~~ 0x9f"}]}"#;

/// Forty rows that are learned quickly, and an odd one as the last.
fn place() -> Place {
    let place = Place::new();
    let rows = vec![CONVERSATION; 40].join("\n");
    place.write("rows.jsonl", format!("{rows}\n{ODD}\n"));
    place
}

const TRAIN: &str = "train --model model --data rows.jsonl --backend flex --set train.epochs=1 \
     --set train.micro_batch_size=1 --set data.shuffle=false --set train.learning_rate=1e-2 \
     --set train.schedule=constant";

fn last_row(place: &Place) -> Value {
    let text = place.read("run/metrics.jsonl");
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

#[test]
fn a_loss_spike_is_reported_with_its_examples() {
    let place = place();
    let output = place.run(&format!("{TRAIN} --out run"));
    let said = stderr(&output);
    assert!(output.status.success(), "{said}");
    let warnings: Vec<&str> = said.lines().filter(|line| line.contains("loss spike")).collect();
    assert_eq!(warnings.len(), 1, "{said}");
    assert!(warnings[0].contains("step 41") && warnings[0].contains("rows.jsonl:41"), "{said}");
    let row = last_row(&place);
    assert!(row["spike"][0][0].as_str().unwrap().contains("rows.jsonl:41"), "{row}");
    assert!((row["spike"][0][1].as_f64().unwrap() - row["loss"].as_f64().unwrap()).abs() < 1e-3);
    assert!(row.get("skipped").is_none());

    let trained = std::fs::read(place.path("run/adapter_model.safetensors")).unwrap();
    let output = place
        .run(&format!("{TRAIN} --out run --set train.overwrite=true --set train.on_spike=skip"));
    assert!(stderr(&output).contains("the weights are unchanged"), "{}", stderr(&output));
    assert!(last_row(&place)["skipped"].as_str().unwrap().contains("rows.jsonl:41"));
    assert!(trained != std::fs::read(place.path("run/adapter_model.safetensors")).unwrap());

    let output = place.run(&format!("{TRAIN} --quiet --out stopped --set train.on_spike=stop"));
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("step 41") && said.contains("rows.jsonl:41"), "{said}");
}

#[test]
fn nonfinite_steps_are_skipped_up_to_a_limit() {
    let place = place();
    let wild = "--set train.learning_rate=1e30 --set train.max_grad_norm=false";
    let said = stderr(&place.run(&format!("{TRAIN} {wild} --out run --quiet")));
    assert!(said.contains("is not finite"), "{said}");
    let skip = "--out other --set train.on_nonfinite=skip --set train.max_skipped=4";
    let output = place.run(&format!("{TRAIN} {wild} {skip} --quiet"));
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("more than 4 steps in a row") && said.contains("finite"), "{said}");
    let rows = place.read("other/metrics.jsonl");
    let skipped = rows.lines().filter(|row| row.contains("skipped")).count();
    assert_eq!(skipped, 4, "{rows}");
}

#[test]
fn early_stopping_returns_the_best_weights() {
    let place = place();
    place.write("other.jsonl", ODD);
    let early = "--out run --eval other.jsonl --set train.eval_every=3 --set train.patience=2 --set train.on_spike=off";
    let output = place.run(&format!("{TRAIN} {early} --set train.result=best"));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(said.contains("stopped early at step"), "{said}");
    let evals: Vec<(u64, f64)> = place
        .read("run/metrics.jsonl")
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter_map(|row| Some((row["step"].as_u64()?, row.get("eval_loss")?.as_f64()?)))
        .collect();
    let (best, lowest) = *evals[1..].iter().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
    let (last, _) = *evals.last().unwrap();
    assert_eq!(last, best + 6, "two evaluations without an improvement: {evals:?}");
    let found =
        place.json("eval --json --model model --adapter run --data other.jsonl --backend flex");
    let loss = found["loss"].as_f64().unwrap();
    assert!((loss - lowest).abs() < 1e-5 * lowest, "{loss} is not {lowest}");
    // Taken up again, it is over still.
    let output = place.run(&format!("{TRAIN} {early} --set train.result=best --quiet --resume"));
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(last_row(&place)["step"], last);
}

#[test]
fn debug_shows_a_micro_batch_by_token() {
    let place = Place::new();
    let output = place.run(
        "train --model model --data rows.jsonl --out run --backend flex --set train.steps=1 --set train.debug=true",
    );
    let said = stderr(&output);
    assert!(output.status.success(), "{said}");
    for text in ["The first micro-batch: 4 rows", "rows.jsonl:1", "gradients", "lora_b", "logits"] {
        assert!(said.contains(text), "no {text:?} in {said}");
    }
}
