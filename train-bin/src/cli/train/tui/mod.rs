//! `emberlm train --tui`: the run on a dashboard that fills the terminal.
//!
//! A thread of its own draws and listens for keys, so that both go on while a step is made. However the program ends
//! (as planned, with an error, by a panic, by a signal), [`leave`] gives the terminal back as it was.

mod dashboard;

use std::io::{self, IsTerminal};
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::memory::footprint::Size;
use crate::memory::peak_memory_mib;
use crate::run::Event;
use anyhow::{Context, Result, bail};
use ratatui::DefaultTerminal;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event as Input, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;

use super::said::said;
use crate::cli::usage::WrongUsage;
use dashboard::{Dashboard, Made};

/// Time between two pictures.
const TICK: Duration = Duration::from_millis(200);

/// Whether the terminal is ours. There is one a process.
static IS_OPEN: AtomicBool = AtomicBool::new(false);

/// Held while a picture is drawn.
static DRAWING: Mutex<()> = Mutex::new(());

/// The dashboard and the thread that draws it.
pub(super) struct Tui {
    board: Arc<Mutex<Dashboard>>,
    began: Instant,
    log_every: u64,
    thread: Option<JoinHandle<()>>,
}

impl Tui {
    /// Takes the terminal. `interrupt` is set when a key asks the run to stop.
    pub(super) fn open(title: String, log_every: u64, interrupt: Arc<AtomicBool>) -> Result<Self> {
        let streams = [
            ("standard input", io::stdin().is_terminal()),
            ("standard output", io::stdout().is_terminal()),
        ];
        if let Some((name, _)) = streams.into_iter().find(|(_, is_terminal)| !is_terminal) {
            bail!(WrongUsage(format!(
                "--tui needs a terminal, and {name} is none; leave --tui out to get lines instead"
            )));
        }
        let terminal = ratatui::try_init().context("--tui: the terminal can't be prepared")?;
        IS_OPEN.store(true, Ordering::SeqCst);
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            leave();
            before(info);
        }));
        let board = Arc::new(Mutex::new(Dashboard::new(title)));
        let began = Instant::now();
        let shown = board.clone();
        let thread = thread::Builder::new()
            .name("dashboard".into())
            .spawn(move || show(terminal, &shown, began, &interrupt))
            .inspect_err(|_| leave())?;
        Ok(Self { board, began, log_every, thread: Some(thread) })
    }

    pub(super) fn take(&self, event: &Event<'_>) {
        let mut board = locked(&self.board);
        match event {
            Event::Model { plan, .. } => board.will_make(plan.steps),
            Event::Evaluated { step, evaluation, .. } => board.evaluated(*step, evaluation.loss),
            Event::Step { log, tokens_per_s } => {
                let made = Made {
                    step: log.step,
                    epoch: log.epoch,
                    loss: log.loss,
                    grad_norm: log.grad_norm,
                    rate: log.learning_rate,
                    tokens_per_s: *tokens_per_s,
                    memory: peak_memory_mib().map(|mib| Size(mib << 20).to_string()),
                };
                board.step(made, self.began.elapsed());
            }
            _ => {}
        }
        if let Some(lines) = said(event, self.log_every, false) {
            board.say(&lines);
        }
    }
}

impl Drop for Tui {
    fn drop(&mut self) {
        leave();
        if let Some(thread) = self.thread.take() {
            // If it panicked, that was told.
            let _ = thread.join();
        }
    }
}

/// Gives the terminal back as it was, if it is ours. From any thread, any number of times.
pub(super) fn leave() {
    if !IS_OPEN.swap(false, Ordering::SeqCst) {
        return;
    }
    // Not while a picture is being drawn; but a thread that panics while drawing must not wait for itself.
    for _ in 0..50 {
        if DRAWING.try_lock().is_ok() {
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
    ratatui::restore();
    // What can't be written to the terminal can't be told there either.
    let _ = execute!(io::stdout(), Show);
}

/// Draws and listens until the terminal is given back.
fn show(
    mut terminal: DefaultTerminal,
    board: &Mutex<Dashboard>,
    began: Instant,
    interrupt: &AtomicBool,
) {
    while IS_OPEN.load(Ordering::SeqCst) {
        if interrupt.load(Ordering::Relaxed) {
            locked(board).stopping();
        }
        let drawn = {
            let _drawing = DRAWING.lock().unwrap_or_else(PoisonError::into_inner);
            if !IS_OPEN.load(Ordering::SeqCst) {
                break;
            }
            terminal.draw(|frame| locked(board).draw(frame, began.elapsed())).is_ok()
        };
        let asked = match event::poll(TICK) {
            Ok(true) => event::read().is_ok_and(|input| asks_to_stop(&input)),
            Ok(false) => false,
            Err(_) => break,
        };
        if asked && interrupt.swap(true, Ordering::Relaxed) {
            leave();
            std::process::exit(130);
        }
        // A terminal that is gone: the run goes on without it.
        if !drawn {
            break;
        }
    }
}

/// `q`, or Ctrl-C, which in raw mode is a key like others.
fn asks_to_stop(input: &Input) -> bool {
    let Input::Key(key) = input else { return false };
    let is_ctrl_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind == KeyEventKind::Press && (is_ctrl_c || key.code == KeyCode::Char('q'))
}

fn locked(board: &Mutex<Dashboard>) -> MutexGuard<'_, Dashboard> {
    board.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use ratatui::crossterm::event::KeyEvent;

    use super::*;

    #[test]
    fn q_and_ctrl_c_stop_and_nothing_else_does() {
        let key = |code, modifiers| Input::Key(KeyEvent::new(code, modifiers));
        assert!(asks_to_stop(&key(KeyCode::Char('q'), KeyModifiers::NONE)));
        assert!(asks_to_stop(&key(KeyCode::Char('c'), KeyModifiers::CONTROL)));
        assert!(!asks_to_stop(&key(KeyCode::Char('c'), KeyModifiers::NONE)));
        assert!(!asks_to_stop(&key(KeyCode::Esc, KeyModifiers::NONE)));
        assert!(!asks_to_stop(&Input::Resize(1, 1)));
    }
}
