//! Dropping the oldest part of the log. The order of the steps makes each of them safe to be the
//! last one before a crash: the new minimum is durable before anything goes, readers lose the
//! messages before the files do, and index blocks are reused only after the files are gone.

use super::Store;
use crate::error::Result;

impl Store {
    /// Drops whole log files that end at or below `position`, except the one being filled;
    /// returns how many.
    pub(crate) fn drop_before(&self, position: u64) -> Result<usize> {
        // One at a time: a minimum never goes back.
        let mut last = self.checkpoint.lock();
        let limit = position.min(self.log.committed());
        let files = self.log.files();
        let gone = files.iter().take_while(|file| file.end() <= limit).last();
        let Some(min) = gone.map(|file| file.end()) else { return Ok(0) };
        drop(files);
        self.write_checkpoint(&mut last, Some(min))?;
        let mut blocks = Vec::new();
        for topic in self.topics.all() {
            for queue in &topic.queues {
                queue.set_min(queue.first_at(min));
                // Under the lock that adds blocks: both replace the chain.
                let _growth = self.index_growth.lock();
                blocks.extend(queue.drop_blocks(queue.min()));
            }
        }
        let dropped = self.log.drop_files(min);
        self.arena.free(blocks);
        self.keys.drop_below(min);
        dropped
    }
}
