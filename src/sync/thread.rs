//! Threads: named, and started nowhere else.

use std::io;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
pub(crate) use std::thread::ThreadId;

/// A running thread that can be joined.
#[derive(Debug)]
pub(crate) struct Thread(std::thread::JoinHandle<()>);

impl Thread {
    /// Waits for the thread to end; returns at once when called by that thread itself.
    pub(crate) fn join(self) {
        if self.0.thread().id() != std::thread::current().id() {
            // A panic in a background thread has already poisoned the broker; nothing to add here.
            let _ = self.0.join();
        }
    }

    pub(crate) fn id(&self) -> ThreadId {
        self.0.thread().id()
    }

    pub(crate) fn is_current(&self) -> bool {
        self.0.thread().id() == std::thread::current().id()
    }
}

/// Starts a thread named `rocklet-<name>`.
pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
    let builder = std::thread::Builder::new().name(format!("rocklet-{name}"));
    builder.spawn(run).map(Thread)
}

/// What tells the calling thread from all others.
pub(crate) fn current_thread() -> ThreadId {
    std::thread::current().id()
}

/// The cores available to the process, at least 1.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// Runs code that may panic, such as the user's; the text of the panic is the error.
pub(crate) fn contain<R>(call: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| {
        let text = panic_text(&*panic);
        // What a panic carries may panic itself when it is dropped.
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
            std::mem::forget(again);
        }
        text
    })
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text.clone()
    } else {
        "a panic without text".to_owned()
    }
}
