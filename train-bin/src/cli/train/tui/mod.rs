//! `emberlm train --tui`: the run on a dashboard that fills the terminal.
//!
//! A separate thread draws and reads keys, also during a step. However the program ends (as planned, with an error, by a
//! panic, by a signal), [`leave`] restores the terminal.

mod dashboard;

use std::io::{self, IsTerminal};
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ratatui::DefaultTerminal;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event as Input, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;

use super::format_event::format_event;
use crate::cli::usage::WrongUsage;
use crate::run::Event;
use dashboard::Dashboard;

/// Time between two frames.
const TICK: Duration = Duration::from_millis(200);

/// Whether the dashboard has the terminal, of which a process has one.
static IS_OPEN: AtomicBool = AtomicBool::new(false);

/// Held while a frame is drawn.
static DRAWING: Mutex<()> = Mutex::new(());

/// The dashboard and the thread that draws it.
pub(super) struct Tui {
    board: Arc<Mutex<Dashboard>>,
    started: Instant,
    log_every: u64,
    thread: Option<JoinHandle<()>>,
}

impl Tui {
    /// Opens the dashboard. A key that stops the run sets `interrupt`.
    pub(super) fn open(title: String, log_every: u64, interrupt: Arc<AtomicBool>) -> Result<Self> {
        let streams =
            [("stdin", io::stdin().is_terminal()), ("stdout", io::stdout().is_terminal())];
        if let Some((name, _)) = streams.into_iter().find(|(_, is_terminal)| !is_terminal) {
            bail!(WrongUsage(format!(
                "--tui needs a terminal, but {name} is not a terminal; without --tui, progress is printed as lines"
            )));
        }
        let terminal = ratatui::try_init().context("--tui: can't set up the terminal")?;
        IS_OPEN.store(true, Ordering::SeqCst);
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            leave();
            before(info);
        }));
        let board = Arc::new(Mutex::new(Dashboard::new(title)));
        let started = Instant::now();
        let shown = board.clone();
        let thread = thread::Builder::new()
            .name("dashboard".into())
            .spawn(move || draw_loop(terminal, &shown, started, &interrupt))
            .inspect_err(|_| leave())?;
        Ok(Self { board, started, log_every, thread: Some(thread) })
    }

    pub(super) fn show(&self, event: &Event<'_>) {
        let mut board = locked(&self.board);
        match event {
            Event::Model { plan, .. } => board.set_steps(plan.steps),
            Event::Evaluated { step, evaluation, .. } => {
                board.add_evaluation(*step, evaluation.loss)
            }
            Event::Step { row } => board.add_step((*row).clone(), self.started.elapsed()),
            _ => {}
        }
        if let Some(lines) = format_event(event, self.log_every, false) {
            board.log(&lines);
        }
    }
}

impl Drop for Tui {
    fn drop(&mut self) {
        leave();
        if let Some(thread) = self.thread.take() {
            // Its panic was printed.
            let _ = thread.join();
        }
    }
}

/// Restores the terminal, if the dashboard has it. From any thread, any number of times.
pub(super) fn leave() {
    if !IS_OPEN.swap(false, Ordering::SeqCst) {
        return;
    }
    // Not while a frame is drawn; but a thread that panics while drawing must not wait for itself.
    for _ in 0..50 {
        if DRAWING.try_lock().is_ok() {
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
    ratatui::restore();
    // An error of writing to the terminal can't be shown there.
    let _ = execute!(io::stdout(), Show);
}

/// Draws and reads keys until the terminal is restored.
fn draw_loop(
    mut terminal: DefaultTerminal,
    board: &Mutex<Dashboard>,
    started: Instant,
    interrupt: &AtomicBool,
) {
    while IS_OPEN.load(Ordering::SeqCst) {
        if interrupt.load(Ordering::Relaxed) {
            locked(board).set_stopping();
        }
        let drawn = {
            let _drawing = DRAWING.lock().unwrap_or_else(PoisonError::into_inner);
            if !IS_OPEN.load(Ordering::SeqCst) {
                break;
            }
            terminal.draw(|frame| locked(board).draw(frame, started.elapsed())).is_ok()
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
        // The terminal was closed: the run continues without it.
        if !drawn {
            break;
        }
    }
}

/// `q`, or Ctrl-C, which in raw mode is an ordinary key.
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
