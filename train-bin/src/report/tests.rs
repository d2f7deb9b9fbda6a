use std::fs;

use super::*;

fn metrics(steps: u64, shift: f64) -> String {
    let mut text = String::new();
    for step in 1..=steps {
        let x = step as f64 / steps as f64;
        let noise = ((step * 7919) % 101) as f64 / 500.0;
        let (loss, norm) = (shift + 2.0 * (-4.0 * x).exp() + noise, 0.8 + 4.0 * noise);
        text.push_str(&format!(
            "{{\"step\":{step},\"epoch\":{x},\"loss\":{loss},\"grad_norm\":{norm},\"learning_rate\":{},\
             \"supervised_tokens\":40,\"tokens\":100,\"padding\":0.1,\"tokens_per_s\":{},\"peak_memory_mib\":{}}}\n",
            2e-4 * (1.0 - x),
            400.0 + 100.0 * noise,
            1200 + step / 10,
        ));
        if step % (steps / 4).max(1) == 0 {
            text.push_str(&format!(
                "{{\"step\":{step},\"eval_loss\":{},\"eval_perplexity\":3.0}}\n",
                loss + 0.2
            ));
        }
    }
    text
}

/// Run folders, each with files.
fn runs(files: &[&[(&str, &str)]]) -> (tempfile::TempDir, Vec<PathBuf>) {
    let place = tempfile::tempdir().unwrap();
    let mut folders = Vec::new();
    for (n, files) in files.iter().enumerate() {
        let folder = place.path().join(format!("run{n}"));
        fs::create_dir(&folder).unwrap();
        for (name, text) in *files {
            fs::write(folder.join(name), text).unwrap();
        }
        folders.push(folder);
    }
    (place, folders)
}

const CONFIG: &str = "[model]\npath = \"models/small\"\n[train]\nseed = 1\n";
const DATA: &str = "{\"train\":{\"examples\":3,\"tokens\":90,\"supervised_tokens\":30,\"longest\":50,\
                    \"lengths\":[{\"from\":1,\"to\":20,\"count\":2},{\"from\":21,\"to\":40,\"count\":0},\
                    {\"from\":41,\"to\":60,\"count\":1}]}}";

fn titles(page: &str) -> Vec<&str> {
    let figures = page.split("<figcaption><h3>").skip(1);
    figures.map(|rest| rest.split("</h3>").next().unwrap()).collect()
}

#[test]
fn one_run_has_all_charts_on_a_self_contained_page() {
    let samples = "{\"step\":0,\"prompt\":\"How hot?\",\"answer\":\"Cold.\"}\n";
    let (_place, folders) = runs(&[&[
        ("metrics.jsonl", &metrics(200, 1.0)),
        ("config.toml", CONFIG),
        ("data.json", DATA),
        ("samples.jsonl", samples),
    ]]);
    let page = page(&folders).unwrap();
    assert_eq!(
        titles(&page),
        ["Loss", "Gradient norm", "Learning rate", "Throughput", "Memory", "Lengths"]
    );
    for text in [
        "evaluation",
        "running mean over 5 steps",
        "How hot?",
        "Cold.",
        "seed = 1",
        "nats per token",
    ] {
        assert!(page.contains(text), "no {text:?}");
    }
    assert_eq!(page.matches("<rect class=\"bar\"").count(), 2, "an empty bin has no bar");
    for outside in ["http://", "https://", "<link", "<img", "src=", "url(", "@import"] {
        assert!(!page.contains(outside), "{outside} in the page");
    }
    assert!(!page.contains("NaN") && !page.contains("class=\"notes\""));
    assert_eq!(page, super::page(&folders).unwrap(), "the page depends on the folders alone");
}

#[test]
fn several_runs_are_in_one_chart_and_their_differences_in_a_table() {
    let other = CONFIG.replace("seed = 1", "seed = 2");
    let texts: Vec<String> = (0..5).map(|n| metrics(60 + 10 * n, 1.0 + n as f64 / 5.0)).collect();
    let files: Vec<Vec<(&str, &str)>> = texts
        .iter()
        .enumerate()
        .map(|(n, text)| {
            let config = if n == 1 { other.as_str() } else { CONFIG };
            vec![("metrics.jsonl", text.as_str()), ("config.toml", config), ("data.json", DATA)]
        })
        .collect();
    let files: Vec<&[(&str, &str)]> = files.iter().map(Vec::as_slice).collect();
    let (_place, folders) = runs(&files);
    for count in [2, 5] {
        let page = page(&folders[..count]).unwrap();
        let charts = titles(&page);
        assert_eq!(charts[..2], ["Training loss", "Evaluation loss"]);
        assert_eq!(
            charts.iter().filter(|title| **title == "Lengths").count(),
            1,
            "data shown once"
        );
        let loss = page.split("</figure>").next().unwrap();
        for n in 0..count {
            assert!(loss.contains(&format!("data-name=\"run{n}\"")));
            assert!(loss.contains(&format!("line c{n} d{n}\"")), "a colour and dashes of its own");
        }
        let table = page.split("class=\"differences\"").nth(1).unwrap();
        let table = table.split("</table>").next().unwrap();
        assert!(table.contains("train.seed") && !table.contains("model.path"));
    }
}

#[test]
fn text_of_a_run_is_escaped() {
    const EVIL: &str = "</pre><script>alert(1)</script>\"'><img src=x onerror=alert(1)>&amp;";
    let json = serde_json::to_string(EVIL).unwrap();
    let samples = format!("{{\"step\":0,\"prompt\":{json},\"answer\":{json}}}\n");
    let config = format!("[model]\npath = {}\n[train]\n{json} = 1\n", toml::Value::from(EVIL));
    let (place, mut folders) = runs(&[
        &[
            ("samples.jsonl", &samples),
            ("config.toml", &config),
            ("metrics.jsonl", &metrics(3, 1.0)),
        ],
        &[("samples.jsonl", &samples), ("config.toml", CONFIG)],
    ]);
    // A slash can't be in a folder's name.
    let evil = place.path().join("\"><script>alert(2)<script>");
    fs::rename(&folders[0], &evil).unwrap();
    folders[0] = evil;
    for count in [1, 2] {
        let page = page(&folders[..count]).unwrap();
        assert_eq!(page.matches("<script>").count(), 1, "only the page's own script");
        assert!(!page.contains("<img") && !page.contains("\"><script") && !page.contains("&amp;'"));
        let escaped = "&lt;script&gt;alert(1)&lt;&#x2f;script&gt;";
        assert!(page.contains(escaped), "shown as text");
        assert!(!page.contains("<script>alert") && !page.contains("onerror=alert(1)>"));
    }
}

#[test]
fn the_size_of_the_page_is_bounded() {
    let text = metrics(100_000, 1.0);
    let files: Vec<[(&str, &str); 1]> =
        (0..5).map(|_| [("metrics.jsonl", text.as_str())]).collect();
    let files: Vec<&[(&str, &str)]> = files.iter().map(|file| &file[..]).collect();
    let (_place, folders) = runs(&files);
    let one = page(&folders[..1]).unwrap();
    assert!(one.len() < 250_000, "{} bytes", one.len());
    let five = page(&folders).unwrap();
    assert!(five.len() < 1_000_000, "{} bytes", five.len());
}

#[test]
fn missing_files_are_noted_and_the_rest_is_shown() {
    let (place, folders) = runs(&[
        &[("metrics.jsonl", "{\"step\":1,\"loss\":2.5}\n{\"step\":2,\"los")],
        &[("config.toml", CONFIG)],
        &[("metrics.jsonl", "")],
    ]);
    let first = page(&folders[..1]).unwrap();
    assert_eq!(titles(&first), ["Loss"]);
    assert!(first.contains("Line 2 of metrics.jsonl cannot be read."), "{first}");
    assert!(first.contains("config.toml is missing."));
    let second = page(&folders[1..2]).unwrap();
    assert!(titles(&second).is_empty() && second.contains("metrics.jsonl is missing"));
    assert!(page(&folders).unwrap().contains("metrics.jsonl has no steps."));
    let error = page(&[place.path().to_owned()]).unwrap_err();
    assert!(matches!(error, ReportError::NotARun { .. }), "{error}");
    assert!(matches!(page(&[]), Err(ReportError::NoRun)));
}
