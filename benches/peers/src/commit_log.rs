//! commitlog: segment files written by `write`, a mapped index, reads that copy.

use std::io;
use std::sync::{Mutex, MutexGuard};

use commitlog::message::{MessageBuf, MessageSet};
use commitlog::{LogOptions, ReadLimit};

use crate::peer::{Job, Peer, Reader, Writer};

/// Appending takes `&mut`, so producers and consumer share it behind a mutex.
pub struct CommitLog(Mutex<commitlog::CommitLog>);

impl CommitLog {
    /// One segment and one index that hold everything.
    pub fn open(job: &Job) -> io::Result<Self> {
        let mut options = LogOptions::new(job.dir.join("commitlog"));
        options
            .segment_max_bytes(2 << 30)
            .index_max_items(job.messages as usize + 1)
            .message_max_bytes(64 << 20);
        Ok(Self(Mutex::new(commitlog::CommitLog::new(options)?)))
    }

    fn lock(&self) -> MutexGuard<'_, commitlog::CommitLog> {
        self.0.lock().expect("no producer panicked")
    }
}

impl Peer for CommitLog {
    fn writer(&self) -> impl Writer + '_ {
        LogWriter { log: self, buffer: MessageBuf::default() }
    }

    fn reader(&self) -> impl Reader + '_ {
        LogReader { log: self, next: 0 }
    }
}

/// Encodes into a buffer of its own, outside the mutex, and reuses that buffer.
struct LogWriter<'a> {
    log: &'a CommitLog,
    buffer: MessageBuf,
}

impl Writer for LogWriter<'_> {
    #[inline]
    fn put(&mut self, body: &[u8]) {
        self.put_batch(std::iter::once(body));
    }

    fn put_batch<'a>(&mut self, bodies: impl Iterator<Item = &'a [u8]>) {
        self.buffer.clear();
        bodies.for_each(|body| self.buffer.push(body).expect("commitlog encodes"));
        self.log.lock().append(&mut self.buffer).expect("commitlog appends");
    }
}

struct LogReader<'a> {
    log: &'a CommitLog,
    next: u64,
}

impl Reader for LogReader<'_> {
    fn poll(&mut self, mut see: impl FnMut(&[u8])) -> usize {
        let limit = ReadLimit::max_bytes(1 << 20);
        let messages = self.log.lock().read(self.next, limit).expect("commitlog reads");
        messages.iter().for_each(|message| see(message.payload()));
        self.next += messages.len() as u64;
        messages.len()
    }
}
