//! Habits of a command line: completions, man pages, colours, logs.

use std::process::{Command, Output};

use crate::support::{Place, stderr};

#[test]
fn completions_know_the_commands() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = place.succeed(&format!("completions {shell}"));
        for part in ["lr-find", "tokenizer", "dry-run"] {
            assert!(script.contains(part), "{shell}: no {part}");
        }
    }
    assert_eq!(place.run("completions tcsh").status.code(), Some(2));
}

#[test]
fn each_command_has_a_man_page() {
    let place = Place::new();
    place.succeed("man pages/man1");
    assert!(place.read("pages/man1/emberlm.1").contains("emberlm"));
    assert!(place.read("pages/man1/emberlm-train.1").contains("resume"));
    assert!(place.read("pages/man1/emberlm-data-check.1").contains("fail"));
    let taken = place.run("man rows.jsonl");
    assert_eq!(taken.status.code(), Some(1));
    assert!(stderr(&taken).contains("rows.jsonl"), "{}", stderr(&taken));
}

fn check(place: &Place, set: &[(&str, &str)]) -> Output {
    let mut command: Command = place.command("data check rows.jsonl --model model");
    for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"] {
        command.env_remove(name);
    }
    command.envs(set.iter().copied()).output().unwrap()
}

#[test]
fn colours_follow_the_environment() {
    let place = Place::new();
    for (set, coloured) in [
        (&[][..], false),
        (&[("CLICOLOR_FORCE", "1")], true),
        (&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")], false),
    ] {
        let output = check(&place, set);
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.contains('\x1b'), coloured, "{set:?}: {text}");
        // Without colours, brackets mark what is trained on.
        assert_ne!(text.contains('⟦'), coloured, "{set:?}: {text}");
    }
}

#[test]
fn verbose_logs_decisions_on_stderr() {
    let place = Place::new();
    let command = "eval --model model --data rows.jsonl --backend flex --json";
    assert_eq!(stderr(&place.run(command)), "");
    for command in [format!("{command} -v"), format!("--verbose {command}")] {
        let output = place.run(&command);
        let log = stderr(&output);
        assert!(log.contains("backend chosen") && log.contains("flex"), "{log}");
        assert!(log.contains("model opened") && !log.contains('\x1b'), "{log}");
        assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 1);
    }
    let by_environment = place.command(command).env("RUST_LOG", "emberlm=info").output().unwrap();
    assert!(stderr(&by_environment).contains("backend chosen"));
    let train =
        "train --model model --data rows.jsonl --out run --backend flex --set train.steps=2";
    let log = stderr(&place.run(&format!("{train} --set train.save_every=1 --quiet -vv")));
    assert!(log.contains("checkpoint written") && log.contains("file hashed"), "{log}");
}
