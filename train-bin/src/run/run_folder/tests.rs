use burn_flex::Flex;

use super::*;
use crate::WeightForm;
use crate::base::builtin;
use crate::run::eval_history::EvalHistory;
use crate::trainer::plan::Plan;

fn config(place: &tempfile::TempDir) -> RunConfig {
    let mut config = RunConfig::default();
    config.train.output_dir = place.path().join("run");
    config
}

fn files(folder: &Path) -> Vec<std::ffi::OsString> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
    names.sort_unstable();
    names
}

struct Saver {
    folder: RunFolder,
    base: crate::Base,
    model: CausalLm<Flex>,
    history: EvalHistory,
}

impl Saver {
    fn new(config: &RunConfig) -> Self {
        let folder = RunFolder::create(config).unwrap();
        let base = builtin::base().unwrap();
        let model = base.build::<Flex>(WeightForm::default(), &Default::default()).unwrap();
        Self { folder, base, model, history: EvalHistory::default() }
    }

    fn save(&mut self, step: u64, config_text: Option<&str>) -> Result<PathBuf, RunFolderError> {
        let config_text = config_text.unwrap_or(&self.base.config_text);
        let artifact = Artifact::Model { config_text, dtype: FloatDtype::F32 };
        let mut state = State::new(&Plan::new(9, 1, 1e-3));
        state.step = step;
        let metadata = CheckpointMetadata {
            seconds: 1.0,
            eval_history: &self.history,
            data: "d",
            base: "b",
            config: "",
            trainer_state: "{}",
        };
        let model = self.model.clone();
        self.folder.save_checkpoint(
            &state,
            model,
            artifact,
            &self.base.tokenizer,
            &metadata,
            Some(2),
        )
    }
}

#[test]
fn a_failed_checkpoint_leaves_nothing_behind() {
    let place = tempfile::tempdir().unwrap();
    let mut saver = Saver::new(&config(&place));
    let path = saver.folder.path().to_owned();
    let before = files(&path);
    // Fails after the weights were written.
    let error = saver.save(1, Some("no JSON")).unwrap_err().to_string();
    assert!(error.contains("No checkpoint was saved before"), "{error}");
    assert_eq!(files(&path), before);
    // Fails after everything is written: the name is taken by something else.
    fs::create_dir(path.join("checkpoint-2")).unwrap();
    fs::write(path.join("checkpoint-2/mine"), "mine").unwrap();
    let before = files(&path);
    assert!(saver.save(2, None).is_err());
    assert_eq!(files(&path), before);
    saver.save(3, None).unwrap();
    assert!(path.join("checkpoint-3/model.safetensors").is_file());
    let error = saver.save(4, Some("no JSON")).unwrap_err().to_string();
    assert!(error.contains("--resume=") && error.contains("checkpoint-3"), "{error}");
}

#[test]
fn the_last_and_the_best_checkpoints_are_kept() {
    let place = tempfile::tempdir().unwrap();
    let mut saver = Saver::new(&config(&place));
    let evaluation =
        |loss| crate::Evaluation { loss, perplexity: 1.0, supervised_tokens: 1, examples: 1 };
    for (step, loss) in [(1, 3.0), (2, 1.0), (3, 2.0), (4, 2.0), (5, 2.0)] {
        saver.history.record(step, evaluation(loss), 0.0);
        saver.save(step, None).unwrap();
    }
    // Again under the same name.
    saver.save(5, None).unwrap();
    let steps = checkpoint::all_in(saver.folder.path()).unwrap();
    assert_eq!(steps.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [2, 4, 5]);
    assert!(checkpoint::unfinished_in(saver.folder.path()).unwrap().is_empty());
}

#[test]
fn every_kind_of_damage_to_a_checkpoint_is_detected() {
    let place = tempfile::tempdir().unwrap();
    let config = config(&place);
    let mut saver = Saver::new(&config);
    saver.save(1, None).unwrap();
    let newest = saver.save(2, None).unwrap();
    drop(saver);
    let state = newest.join(checkpoint::STATE_FILE);
    let (weights, text) = (newest.join("model.safetensors"), fs::read_to_string(&state).unwrap());
    let whole = fs::read(&weights).unwrap();
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let harm: [(&str, &dyn Fn()); 5] = [
        ("checksum of model.safetensors", &|| fs::write(&weights, &flipped).unwrap()),
        ("checksum of model.safetensors", &|| fs::write(&weights, &whole[..99]).unwrap()),
        ("model.safetensors: ", &|| fs::remove_file(&weights).unwrap()),
        ("checksum of training_state.json", &|| fs::write(&state, text.replace('1', "2")).unwrap()),
        ("never completed", &|| fs::remove_file(newest.join(checkpoint::SUMS_FILE)).unwrap()),
    ];
    for (expected, harm) in harm {
        harm();
        let locked = LockedRunFolder::open(&config.train.output_dir).unwrap();
        let (found, damaged) = locked.newest().unwrap();
        assert_eq!(found.unwrap().state.step, 1);
        let error = damaged[0].to_string();
        assert!(error.contains(expected) && error.contains("checkpoint-2"), "{error}");
        fs::write(&weights, &whole).unwrap();
        fs::write(&state, &text).unwrap();
    }
    let folder =
        LockedRunFolder::open(&config.train.output_dir).unwrap().resume(&config, 1, None).unwrap();
    assert!(folder.path().join("checkpoint-2.damaged").is_dir());
    assert_eq!(checkpoint::all_in(folder.path()).unwrap().len(), 1);
}

#[test]
fn a_folder_belongs_to_one_process_at_a_time() {
    let place = tempfile::tempdir().unwrap();
    let config = config(&place);
    let folder = RunFolder::create(&config).unwrap();
    let Err(error) = RunFolder::create(&config) else { panic!("two runs in one folder") };
    let pid = std::process::id().to_string();
    assert!(matches!(&error, RunFolderError::Locked { pid: Some(found), .. } if *found == pid));
    drop(folder);
    // Unlocked again, but it holds a run.
    assert!(matches!(RunFolder::create(&config), Err(RunFolderError::Taken { .. })));
}

#[test]
fn rows_after_the_step_of_a_resume_are_removed() {
    let place = tempfile::tempdir().unwrap();
    let config = config(&place);
    let folder = RunFolder::create(&config).unwrap();
    let metrics = folder.path().join(METRICS_FILE);
    drop(folder);
    let kept =
        "{\"step\":0,\"eval_loss\":1}\n{\"step\":1}\n{\"step\":2}\n{\"step\":2,\"eval_loss\":1}\n";
    let rows = format!("{kept}{{\"step\":3}}\n{{\"step\":");
    fs::write(&metrics, rows).unwrap();
    let open = || {
        LockedRunFolder::open(&config.train.output_dir).unwrap().resume(&config, 2, None).unwrap()
    };
    let mut folder = open();
    folder.log(&serde_json::json!({"step": 3, "again": true})).unwrap();
    let text = fs::read_to_string(&metrics).unwrap();
    assert_eq!(text, format!("{kept}{{\"step\":3,\"again\":true}}\n"));
}
