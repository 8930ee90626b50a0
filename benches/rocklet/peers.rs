//! The peers: built by cargo out of `benches/peers`, run as child processes.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::Fallible;
use crate::cases::{Case, Work};

/// A child that takes longer is stopped and counts as failed.
const LIMIT: Duration = Duration::from_secs(120);

/// The program, or why there is none.
pub(crate) struct Peers(Result<PathBuf, String>);

impl Peers {
    pub(crate) fn build(target: &Path) -> Self {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peers/Cargo.toml");
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let output = Command::new(cargo)
            .args(["build", "--release", "--locked", "--quiet", "--manifest-path"])
            .args([&manifest, Path::new("--target-dir"), target])
            .output();
        Self(match output {
            Ok(output) if output.status.success() => Ok(target.join("release/rocklet-bench-peers")),
            Ok(output) => Err(format!("{}: {}", output.status, first_lines(&output.stderr))),
            Err(error) => Err(error.to_string()),
        })
    }

    pub(crate) fn problem(&self) -> Option<&str> {
        self.0.as_ref().err().map(String::as_str)
    }

    /// Messages a second of one run.
    pub(crate) fn run(
        &self,
        peer: &str,
        case: &Case,
        messages: u64,
        dir: &Path,
    ) -> Fallible<Vec<f64>> {
        let program = self.0.as_ref().map_err(|_| "not built")?;
        let workload = match case.work {
            Work::Read => "read",
            Work::Relay => "relay",
            _ => "append",
        };
        let numbers = [case.size as u64, case.producers as u64, case.batch as u64, messages];
        let mut child = Command::new(program)
            .args([peer, workload])
            .args(numbers.map(|number| number.to_string()))
            .arg(dir)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let began = Instant::now();
        while child.try_wait()?.is_none() {
            if began.elapsed() > LIMIT {
                child.kill()?;
                child.wait()?;
                return Err("stopped at its time limit".into());
            }
            thread::sleep(Duration::from_millis(5));
        }
        let output = child.wait_with_output()?;
        let line: serde_json::Value = match output.status.success() {
            true => serde_json::from_slice(&output.stdout)?,
            false => return Err(first_lines(&output.stderr).into()),
        };
        Ok(vec![line["rate"].as_f64().ok_or("no rate in the line of the child")?])
    }
}

fn first_lines(stderr: &[u8]) -> String {
    String::from_utf8_lossy(stderr).lines().take(3).collect::<Vec<_>>().join(" | ")
}
