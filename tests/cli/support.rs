//! Running the binary, and model folders to run it on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

pub(crate) const CONVERSATION: &str = r#"{"messages":[{"role":"user","content":"How hot?"},{"role":"assistant","content":"About 1200."}]}"#;

pub(crate) fn golden(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/goldens").join(relative)
}

/// A folder for one test, with the golden model `llama` in `model/` and `rows.jsonl` next to it.
pub(crate) struct Place {
    pub(crate) folder: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("model");
        fs::create_dir(&model).unwrap();
        for entry in fs::read_dir(golden("models/llama")).unwrap() {
            let entry = entry.unwrap();
            if !entry.file_name().to_string_lossy().starts_with("golden") {
                fs::copy(entry.path(), model.join(entry.file_name())).unwrap();
            }
        }
        fs::write(folder.path().join("rows.jsonl"), format!("{CONVERSATION}\n")).unwrap();
        Self { folder }
    }

    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        self.folder.path().join(relative)
    }

    pub(crate) fn write(&self, relative: &str, text: impl AsRef<[u8]>) {
        fs::write(self.path(relative), text).unwrap();
    }

    pub(crate) fn read(&self, relative: &str) -> String {
        fs::read_to_string(self.path(relative)).unwrap()
    }

    /// Replaces a text that must be there.
    pub(crate) fn replace(&self, relative: &str, from: &str, to: &str) {
        let text = self.read(relative);
        assert!(text.contains(from), "{relative} has no {from:?}");
        self.write(relative, text.replace(from, to));
    }

    /// Replaces bytes of the same number in the header of a safetensors file, the first time they occur.
    pub(crate) fn patch(&self, relative: &str, from: &str, to: &str) {
        assert_eq!(from.len(), to.len());
        let mut bytes = fs::read(self.path(relative)).unwrap();
        let at = bytes.windows(from.len()).position(|window| window == from.as_bytes());
        let at = at.unwrap_or_else(|| panic!("{relative} has no {from:?}"));
        bytes[at..at + from.len()].copy_from_slice(to.as_bytes());
        self.write(relative, bytes);
    }

    /// Runs `emberlm` with this folder as working directory; the command line is split at spaces.
    pub(crate) fn run(&self, command_line: &str) -> Output {
        self.command(command_line).output().unwrap()
    }

    pub(crate) fn command(&self, command_line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_emberlm"));
        command.args(command_line.split_whitespace()).current_dir(self.folder.path());
        command
    }

    /// Runs a command that must succeed, and returns its stdout.
    pub(crate) fn succeed(&self, command_line: &str) -> String {
        let output = self.run(command_line);
        assert!(output.status.success(), "{command_line}: {}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// As [`succeed`](Self::succeed), for commands that print one JSON object.
    pub(crate) fn json(&self, command_line: &str) -> Value {
        let text = self.succeed(command_line);
        assert_eq!(text.lines().count(), 1, "exactly one JSON object: {text}");
        serde_json::from_str(&text).unwrap()
    }
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
