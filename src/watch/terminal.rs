//! The terminal: set up, drawn on, polled for keys, and restored, also after a panic or a signal.

use super::run_files::RunFiles;
use super::terminal_view::{Colors, draw};
use super::view::View;
use crate::batch::signals;
use crate::clock::unix_now;
use crate::test_hooks::fault_point;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use std::io::Result;
use std::time::{Duration, Instant};

/// Interval between passes over the records.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Interval between polls of the keyboard, which also detect signals.
const LISTEN: Duration = Duration::from_millis(100);
/// Signals that end a view; a raw terminal sends none for Ctrl-C.
const ENDING: [libc::c_int; 4] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT];

/// Shows the run until the user quits.
///
/// # Errors
/// Standard output is not a usable terminal.
pub fn show(records: &mut RunFiles) -> Result<()> {
    signals::listen(&ENDING);
    // Its panic hook restores the terminal before the message is printed.
    let mut terminal = ratatui::try_init()?;
    let outcome = until_left(&mut terminal, records);
    let restored = ratatui::try_restore();
    outcome.and(restored)
}

fn until_left(terminal: &mut DefaultTerminal, records: &mut RunFiles) -> Result<()> {
    let colors = Colors(crate::environment::variable_os("NO_COLOR").is_none_or(|value| value.is_empty()));
    for n_looks in 0.. {
        let now = unix_now();
        records.look(now);
        let looked = Instant::now();
        let mut drawn = false;
        while looked.elapsed() < LOOK_EVERY {
            if !drawn {
                fault_point("watch.draw", 0, n_looks);
                let view = View::of(records, unix_now());
                terminal.draw(|frame| draw(frame, &view, colors))?;
                drawn = true;
            }
            if signals::stop_code() != 0 {
                return Ok(());
            }
            if !event::poll(LISTEN)? {
                continue;
            }
            match event::read()? {
                Event::Key(key) if key.kind == KeyEventKind::Press => {
                    let control = key.modifiers.contains(KeyModifiers::CONTROL);
                    match key.code {
                        KeyCode::Char('q' | 'Q') | KeyCode::Esc => return Ok(()),
                        KeyCode::Char('c' | 'd') if control => return Ok(()),
                        _ => {}
                    }
                }
                Event::Resize(..) => drawn = false,
                _ => {}
            }
        }
    }
    unreachable!("a view is left long before")
}
