//! Children: this executable again, as another process.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Longer than anything here takes.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The first argument of a child.
const CHILD: &str = "--child";

/// The arguments, if this process is a child.
pub(crate) fn child_arguments() -> Option<Vec<String>> {
    let mut arguments = std::env::args().skip(1);
    (arguments.next()? == CHILD).then(|| arguments.collect())
}

/// A running child. It is killed when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Process {
    /// Starts this executable with `arguments`.
    pub(crate) fn start<A: AsRef<OsStr>>(arguments: &[A]) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg(CHILD).args(arguments);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a child");
        let stdin = child.stdin.take();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        // Reads all that a child has said, after its end as well.
        std::thread::spawn(move || {
            let mut line = String::new();
            // A last line without its end was being said when the child was killed.
            while output.read_line(&mut line).is_ok() && line.ends_with('\n') {
                line.pop();
                if sender.send(std::mem::take(&mut line)).is_err() {
                    return;
                }
            }
        });
        Self { child, stdin, lines }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The next line; `None` at the end of the output, or once `deadline` is over.
    pub(crate) fn line_until(&self, deadline: Instant) -> Option<String> {
        self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok()
    }

    /// The next line, which must come.
    pub(crate) fn line(&self) -> String {
        self.lines.recv_timeout(LONG).expect("a line of the child")
    }

    /// What is said until the end of the output.
    pub(crate) fn rest(&self) -> Vec<String> {
        let mut rest = Vec::new();
        loop {
            match self.lines.recv_timeout(LONG) {
                Ok(line) => rest.push(line),
                Err(RecvTimeoutError::Disconnected) => return rest,
                Err(RecvTimeoutError::Timeout) => panic!("the child goes on"),
            }
        }
    }

    /// Says a line to the child.
    pub(crate) fn say(&mut self, line: &str) {
        writeln!(self.stdin.as_mut().expect("its input"), "{line}").expect("a listening child");
    }

    /// Ends its input.
    pub(crate) fn hang_up(&mut self) {
        self.stdin = None;
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < LONG, "the child goes on");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Standard output without a lock and without a buffer, so that lines of several threads stay
/// whole and a line that was written has left the process.
pub(crate) fn unbuffered_output() -> std::fs::File {
    std::fs::File::from(std::io::stdout().as_fd().try_clone_to_owned().unwrap())
}

/// Returns once the parent says a line (true) or hangs up (false).
pub(crate) fn told() -> bool {
    std::io::stdin().lock().read_line(&mut String::new()).is_ok_and(|length| length > 0)
}
