//! khata-rs: one mapped file, one writer, readers that borrow.

use std::mem::ManuallyDrop;

use crate::peer::{Job, Peer, Reader, Writer};

pub struct Khata(khata_rs::Queue);

impl Khata {
    /// Checksums on, as rocklet has them; one block that holds everything.
    pub fn open(job: &Job) -> khata_rs::Result<Self> {
        let block = job.messages as usize * (job.size + 8) + (4 << 20);
        Ok(Self(
            khata_rs::Queue::new(job.dir.join("khata"))
                .block_size(block)
                .checksums(true)
                .build()?,
        ))
    }
}

impl Peer for Khata {
    fn writer(&self) -> impl Writer + '_ {
        KhataWriter(ManuallyDrop::new(self.0.writer().expect("khata opens its writer")))
    }

    fn reader(&self) -> impl Reader + '_ {
        let mut reader = self.0.reader().expect("khata opens a reader");
        reader.rewind().expect("khata goes to the start");
        KhataReader(reader)
    }
}

/// Never dropped: the drop syncs the whole file, which nobody measures here.
struct KhataWriter<'a>(ManuallyDrop<khata_rs::Writer<'a>>);

impl Writer for KhataWriter<'_> {
    #[inline]
    fn put(&mut self, body: &[u8]) {
        self.0.write(body).expect("khata writes");
    }
}

struct KhataReader<'a>(khata_rs::Reader<'a>);

impl Reader for KhataReader<'_> {
    fn poll(&mut self, mut see: impl FnMut(&[u8])) -> usize {
        let mut count = 0;
        while count < 1024 {
            let Some(body) = self.0.read().expect("khata reads") else { break };
            see(body);
            count += 1;
        }
        count
    }
}
