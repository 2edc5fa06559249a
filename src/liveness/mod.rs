//! Whether every rank is alive and makes progress: the flight recorder, heartbeats, the watchdog, stragglers.
//!
//! Ranks see each other through files, because they are needed when the communicator is stuck.
//!
//! Must not know: MPI, models, backends, decks.

mod flight_recorder;
pub mod heartbeat;
mod recording;
pub mod start_watch;
pub mod stragglers;
mod watchdog;

pub use flight_recorder::FlightRecorder;
pub use start_watch::StartPlace;
