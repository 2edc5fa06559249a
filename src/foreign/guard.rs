//! Third-party parsers that may panic on their input: for the caller that is an error of the input.
//!
//! The program's panic hooks print and abort the job; they check [`is_guarded`] and leave such a panic to
//! [`guarded`].

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Whether this thread is within [`guarded`]: a panic there ends a parser, not the program.
pub fn is_guarded() -> bool {
    DEPTH.with(|depth| depth.get() > 0)
}

/// Calls a third-party parser on this thread. A panic loses its state, so `parse` must not leave anything
/// inconsistent that is used afterwards.
///
/// # Errors
/// It panicked; the error has its message.
pub fn guarded<T>(parse: impl FnOnce() -> T) -> Result<T, String> {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            DEPTH.with(|depth| depth.set(depth.get() - 1));
        }
    }
    DEPTH.with(|depth| depth.set(depth.get() + 1));
    let _leave = Leave;
    catch_unwind(AssertUnwindSafe(parse)).map_err(|payload| {
        let words =
            payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied());
        format!("its parser failed: {}", words.unwrap_or("without a message"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_within_is_an_error_with_its_words_and_the_guard_ends_with_it() {
        assert_eq!(guarded(|| 7), Ok(7));
        assert_eq!(guarded(|| -> u32 { panic!("at {}", 3) }), Err("its parser failed: at 3".into()));
        let nested = guarded(|| {
            assert!(guarded(|| panic!("inner")).is_err());
            is_guarded()
        });
        assert_eq!((nested, is_guarded()), (Ok(true), false));
    }
}
