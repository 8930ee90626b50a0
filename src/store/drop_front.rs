//! How the front of the log goes: files leave the list first, then the directory, and a few wait
//! for another life as the next file.
//!
//! A file is used again only if this was its last reference and nobody outside has a lock on it:
//! what a delivery lends, here or in a reader of another process, never changes. Any other file is
//! unlinked; its memory lives on until the last delivery goes.

use super::commit_log::{CommitLog, Limits};
use super::files::io_error;
use super::log_file::{FOLDER, LogFile};
use crate::error::Result;
use crate::sync::Counted;

/// Dropped files that are kept for another life.
const SPARES: usize = 2;

/// What becomes of dropped files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disposal {
    /// A few become the next files of the log: warm pages and allocated blocks.
    Reuse,
    /// All space goes back to the file system.
    Return,
}

/// What became of them.
#[derive(Debug, Default)]
pub(crate) struct Gone {
    pub(crate) reused: u64,
    /// Bytes that are there again, for the log or for others: not those that are held.
    pub(crate) freed: u64,
}

impl CommitLog {
    /// Takes the files out of the list that end at or below `position`, never the one being
    /// filled. The caller has made the new minimum durable: whatever happens to the files now,
    /// they are gone at the next open.
    pub(crate) fn take_front(&self, position: u64) -> Vec<Counted<LogFile>> {
        let _growth = self.growth.lock();
        let limit = position.min(self.with_tail(|tail| tail.base()));
        let files = self.files.load().to_vec();
        let count = files.iter().take_while(|file| file.end() <= limit).count();
        self.files.store(files[count..].to_vec());
        files.into_iter().take(count).collect()
    }

    /// Gives back what files take that are out of the list. No lock of appends is held while a
    /// file is removed, which can take long: producers go on.
    ///
    /// # Errors
    /// The first failure; the other files are gone.
    pub(crate) fn give_back(
        &self,
        files: Vec<Counted<LogFile>>,
        disposal: Disposal,
        limits: Limits,
    ) -> Result<Gone> {
        let mut gone = Gone::default();
        let mut failed = Ok(());
        for file in files {
            let (name, bytes) = (file.name(), file.segment.capacity() as u64);
            let file = match if disposal == Disposal::Reuse {
                self.reuse(file, limits)
            } else {
                Err(file)
            } {
                Ok(()) => {
                    gone.reused += 1;
                    gone.freed += bytes;
                    continue;
                }
                Err(file) => file,
            };
            file.count_in(&self.held);
            let removed = self.storage.unlink(&name);
            failed = failed.and(removed.map_err(|e| io_error(&*self.storage, "remove", &name, e)));
            if Counted::try_unwrap(file).is_ok() {
                gone.freed += bytes;
            }
        }
        let synced = self.storage.sync_folder(FOLDER);
        failed.and(synced.map_err(|e| io_error(&*self.storage, "sync", FOLDER, e))).map(|()| gone)
    }

    /// Returns the space of files that wait for another life; how many bytes.
    pub(super) fn release_spares(&self) -> u64 {
        let spares = std::mem::take(&mut self.growth.lock().spares);
        let released = spares.into_iter().map(|(name, writer)| {
            // One that cannot be removed goes at the next open.
            let removed = self.storage.unlink(&name);
            removed.map_or(0, |()| writer.segment().capacity() as u64)
        });
        released.sum()
    }

    /// Bytes of the files of the log, and of those that wait for another life.
    pub(super) fn sizes(&self) -> (u64, u64) {
        // Files move from one to the other under it.
        let growth = self.growth.lock();
        let spares = growth.spares.iter().map(|(_, writer)| writer.segment().capacity() as u64);
        (self.bytes(), spares.sum())
    }

    /// Keeps a file for another life. Deliveries of a broker that was closed before may still lend
    /// what is in a file of an earlier life.
    fn reuse(&self, file: Counted<LogFile>, limits: Limits) -> Result<(), Counted<LogFile>> {
        let fits = file.made_here && file.segment.capacity() as u64 == self.file_size;
        let mut growth = self.growth.lock();
        // Another may have taken its place already.
        let bytes = self.bytes() + (growth.spares.len() as u64 + 1) * self.file_size;
        let room = limits.max_bytes.is_none_or(|most| bytes <= most);
        if !fits || !room || growth.spares.len() >= SPARES {
            return Err(file);
        }
        #[cfg(not(broken_reuse_held))]
        let file = Counted::try_unwrap(file)?;
        #[cfg(broken_reuse_held)]
        let file = file.twin();
        let (base, made_ms, name) = (file.base, file.made_ms, file.name());
        let writer = file.recycle().map_err(Counted::new)?;
        // Its own base tells it from every other spare.
        let spare = format!("{FOLDER}/spare-{base:020}");
        if self.storage.rename_unshared(&name, &spare).is_ok_and(|renamed| renamed) {
            growth.spares.push((spare, writer));
            return Ok(());
        }
        Err(Counted::new(LogFile::made(base, made_ms, &writer)))
    }
}
