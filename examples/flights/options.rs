//! The command line.

use crate::Result;
use std::ffi::OsString;
use std::path::PathBuf;

const USAGE: &str = "usage: flights [CSV] [--dir DIR] [--kill-after N]

  CSV             the flights to send; without it, the bundled sample
  --dir DIR       keep the queue in DIR and resume there; without it, a temporary directory
  --kill-after N  die of SIGKILL when the group of 3 has consumed N rows; needs --dir";

/// What the command line asks for.
#[derive(Debug, Default)]
pub(crate) struct Options {
    /// The file to send, or the bundled sample.
    pub(crate) csv: Option<PathBuf>,
    /// Where the queue lives, or a temporary directory.
    pub(crate) dir: Option<PathBuf>,
    /// After how many rows consumed by the group of 3 the process kills itself.
    pub(crate) kill_after: Option<u64>,
}

impl Options {
    /// Reads the arguments, without the program's name.
    pub(crate) fn parse(mut args: impl Iterator<Item = OsString>) -> Result<Self> {
        let mut options = Self::default();
        while let Some(arg) = args.next() {
            match arg.to_str() {
                Some("--dir") => options.dir = Some(args.next().ok_or(USAGE)?.into()),
                Some("--kill-after") => {
                    let rows = args.next().ok_or(USAGE)?;
                    options.kill_after = Some(rows.to_str().ok_or(USAGE)?.parse()?);
                }
                Some(flag) if flag.starts_with('-') => return Err(USAGE.into()),
                _ if options.csv.is_none() => options.csv = Some(arg.into()),
                _ => return Err(USAGE.into()),
            }
        }
        if options.kill_after.is_some() && options.dir.is_none() {
            return Err(USAGE.into());
        }
        Ok(options)
    }
}
