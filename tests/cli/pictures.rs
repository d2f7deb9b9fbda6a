//! How a run is seen: reports, TensorBoard, the dashboard, the sweep of the learning rate.

use std::fs;

use serde_json::Value;

use crate::support::{Place, golden, stderr};

fn trained(place: &Place, name: &str, more: &str) {
    let data = golden("train/lora-sft/data.jsonl");
    place.succeed(&format!(
        "train --quiet --model model --data {0} --eval {0} --out {name} --backend flex \
         --set train.steps=6 --set train.eval_every=3 {more}",
        data.display()
    ));
}

#[test]
fn a_report_is_one_file() {
    let place = Place::new();
    trained(&place, "runs/one", "");
    trained(&place, "runs/two", "--set train.learning_rate=1e-3");
    let said = place.succeed("report runs/one --out one.html");
    assert!(said.contains("one.html"), "{said}");
    let page = place.read("one.html");
    let rows = place.read("runs/one/metrics.jsonl");
    let last: Value = serde_json::from_str(rows.lines().last().unwrap()).unwrap();
    let loss = format!("{:.3}", last["eval_loss"].as_f64().unwrap());
    assert!(page.contains(&loss), "no last evaluation loss {loss}");
    assert!(page.contains("<title>one · emberlm</title>"));

    place.succeed("report runs/one runs/two --out both.html");
    let page = place.read("both.html");
    assert!(page.contains("2 runs compared") && page.contains("train.learning_rate"));

    let failed = place.run("report runs/one runs/none --out none.html");
    assert_eq!(failed.status.code(), Some(1));
    assert!(stderr(&failed).contains("runs/none: not a run folder"), "{}", stderr(&failed));
    assert!(!place.path("none.html").exists());
    assert_eq!(place.run("report").status.code(), Some(2));
}

#[test]
fn event_files_are_written_on_request() {
    let place = Place::new();
    trained(&place, "without", "");
    assert!(!place.path("without/tensorboard").exists());
    trained(&place, "with", "--set train.tensorboard=true");
    let entries = fs::read_dir(place.path("with/tensorboard")).unwrap();
    let files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    let bytes = fs::read(&files[0]).unwrap();
    let count = |tag: &[u8]| bytes.windows(tag.len()).filter(|window| *window == tag).count();
    assert_eq!((count(b"train/loss"), count(b"eval/loss")), (6, 3));
}

#[test]
fn a_dashboard_without_a_terminal_is_refused_first() {
    let place = Place::new();
    let failed = place.run("train --tui --model model --data rows.jsonl --out run");
    assert_eq!(failed.status.code(), Some(2));
    assert!(stderr(&failed).contains("--tui needs a terminal"), "{}", stderr(&failed));
    assert!(!place.path("run").exists());
}

#[test]
fn lr_find_proposes_a_rate_and_writes_only_its_chart() {
    let place = Place::new();
    let data = golden("train/lora-sft/data.jsonl");
    let line = format!(
        "lr-find --model model --data {} --picture sweep.html --backend flex --from 1e-5 --to 100 --steps 60",
        data.display()
    );
    let found = place.json(&format!("{line} --json"));
    let tried = found["tried"].as_array().unwrap();
    let rate = |n: usize| tried[n]["rate"].as_f64().unwrap();
    assert!((rate(0) / 1e-5 - 1.0).abs() < 1e-9);
    assert!((1..tried.len()).all(|n| rate(n) > rate(n - 1)));
    assert_eq!(found["diverged"], true, "100 is too high for anything: {found}");
    let (least, proposal) = (found["least_at"].as_f64(), found["proposal"].as_f64());
    let (least, proposal) = (least.unwrap(), proposal.unwrap());
    assert!((1e-4..10.0).contains(&least) && (proposal * 10.0 / least - 1.0).abs() < 1e-9);
    assert!(place.read("sweep.html").contains("Learning-rate range test"));
    let entries = fs::read_dir(place.folder.path()).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
    names.sort_unstable();
    assert_eq!(names, ["model", "rows.jsonl", "sweep.html"], "nothing else was written");

    // The same numbers again, as a table.
    let table = place.succeed(&line);
    assert!(table.contains(&format!("proposed learning rate  {proposal:.2e}")), "{table}");
    let wrong = place.run("lr-find --model model --data rows.jsonl --from 1e-2 --to 1e-3");
    assert_eq!(wrong.status.code(), Some(2));
}
