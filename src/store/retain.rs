//! Dropping the oldest part of the log. The order of the steps makes each of them safe to be the
//! last one before a crash: the new minimum is durable before anything goes, readers lose the
//! messages before the files do, and blocks are reused only after the unlinks are durable.

use super::Store;
use super::consume_queue::ConsumeQueue;
use crate::error::Result;

impl Store {
    /// Drops whole log files that end at or below `position`, except the one being filled;
    /// returns how many.
    pub(crate) fn drop_before(&self, position: u64) -> Result<usize> {
        let files = self.log.files();
        let gone = files.iter().take_while(|file| file.end() <= position).count();
        // The last file is being filled, or is the one to be filled next.
        let active = self.log.committed();
        let gone = files.iter().take(gone).take_while(|file| file.end() <= active).count();
        let Some(min) = gone.checked_sub(1).map(|last| files[last].end()) else { return Ok(0) };
        drop(files);
        self.write_checkpoint(Some(min))?;
        for topic in self.topics.all() {
            topic.queues.iter().for_each(|queue| self.pass(queue, min));
        }
        Ok(self.log.drop_files(min)?.len())
    }

    /// Raises a queue's minimum to its first message at or above `position`.
    fn pass(&self, queue: &ConsumeQueue, position: u64) {
        let (mut low, mut high) = (queue.min(), queue.max());
        while low < high {
            let middle = low + (high - low) / 2;
            if queue.entry(middle).is_some_and(|entry| entry.position < position) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        queue.set_min(low);
        // Under the lock that adds blocks: both replace the chain.
        let growth = self.index_growth.lock();
        let dropped = queue.drop_blocks(low);
        drop(growth);
        self.arena.free(dropped);
    }
}
