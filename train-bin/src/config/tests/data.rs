//! `[data]`: mixtures and layouts.

use super::*;

pub(super) const MIXTURE: &str = "
[data]
eval = '/d/e.jsonl'
[[data.source]]
path = '/d/a.jsonl'
weight = 3
[[data.source]]
path = ['/d/b.jsonl', 'c.jsonl']
";

#[test]
fn a_mixture_has_sources_with_weights() {
    let here = std::env::current_dir().unwrap();
    let source = vec![
        MixtureSource { path: vec!["/d/a.jsonl".into()], weight: 3.0 },
        MixtureSource { path: vec!["/d/b.jsonl".into(), here.join("c.jsonl")], weight: 1.0 },
    ];
    let eval = vec!["/d/e.jsonl".into()];
    assert_eq!(read(MIXTURE).unwrap().data.source, DataSource::Mixture { source, eval });
    // Files on the command line replace the mixture in the file.
    let flag =
        Override::Flag { flag: "--data".into(), key: "data.train".into(), value: "/x".into() };
    let config = load_str(MIXTURE, "run.toml", &[flag]).unwrap();
    let eval = vec!["/d/e.jsonl".into()];
    assert_eq!(config.data.source, DataSource::Files { train: vec!["/x".into()], eval });
}

#[test]
fn faults_in_a_mixture_name_the_source() {
    one_fault(
        "[[data.source]]\npath = 'a'\nweight = 0",
        "run.toml:3:1: `data.source[0].weight`: expected a number greater than 0, found 0; \
         change it, or remove it for the default, 1.0",
    );
    one_fault(
        "[[data.source]]\npath = 'a'\n[[data.source]]\npath = 'b'\nwieght = 2",
        "run.toml:5:1: unknown key `data.source[1].wieght`: did you mean `data.source[1].weight`?",
    );
    one_fault(
        "[[data.source]]\nweight = 2",
        "run.toml:1:8: `data.source[0].path` is missing: expected a file of training data, or a list of files, \
         because a source \
         needs files; set it, or remove the source",
    );
    one_fault(
        "[[data.source]]\npath = 7",
        "run.toml:2:1: `data.source[0].path`: expected a path or a list of paths (strings), found the whole number 7; \
         write it in quotes, \"…\", on the command line '\"…\"'",
    );
    for (text, expected) in [
        ("[[data.source]]\npath = []", "`data.source[0].path`: expected at least one file"),
        ("data.source = []", "`data.source`: expected at least one section"),
        ("data.source = 'a'", "`data.source`: expected a list of sections"),
        (
            "data.train = 'd'\ndata.source = [{ path = 'a' }]",
            "`data.train` (run.toml:1:6) and `data.source`",
        ),
    ] {
        let [fault] = faults(text).try_into().unwrap();
        assert!(fault.contains(expected), "{fault}");
    }
}

#[test]
fn layouts_that_exclude_each_other_are_refused() {
    assert!(read("data.packing = true").unwrap().data.packing);
    assert!(read("data.group_by_length = true").unwrap().data.group_by_length);
    for (text, expected) in [
        ("data.packing = true\ndata.group_by_length = true", "packed rows are full"),
        (
            "data.shuffle = false\ndata.group_by_length = true",
            "grouping by length reorders the examples",
        ),
    ] {
        let [fault] = faults(text).try_into().unwrap();
        assert!(fault.contains("contradict each other") && fault.contains(expected), "{fault}");
    }
    assert!(read("data.shuffle = false\ndata.packing = true").is_ok());
}
