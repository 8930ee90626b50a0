//! One file of the commit log.

use super::files::{HEAD, Head, io_error};
use super::record::Record;
use crate::error::Result;
use crate::storage::{Carver, Region, Segment, SegmentWriter, Storage, recycle};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Counted, OnceLock};

/// Folder of the log files.
pub(crate) const FOLDER: &str = "commitlog";
pub(super) const KIND: [u8; 4] = *b"clog";
/// The name under which a file is made before it gets its place.
pub(super) const UNPLACED: &str = "commitlog/new";

/// A segment of the commit log and its place in it.
#[derive(Debug)]
pub(crate) struct LogFile {
    /// The position of its first byte.
    pub(crate) base: u64,
    pub(crate) segment: Arc<Segment>,
    /// By this broker since it was opened: nobody else has ever mapped it.
    pub(super) made_here: bool,
    /// When it got its place, in wall time: those before the one before it were full by then.
    pub(super) made_ms: u64,
    held: OnceLock<Held>,
}

impl LogFile {
    /// A file that this broker has made.
    pub(crate) fn made(base: u64, made_ms: u64, writer: &SegmentWriter) -> Self {
        let (segment, held) = (writer.segment().clone(), OnceLock::new());
        Self { base, segment, made_here: true, made_ms, held }
    }

    /// A file that was there when this broker was opened.
    pub(super) fn found(base: u64, made_ms: u64, writer: &SegmentWriter) -> Self {
        Self { made_here: false, ..Self::made(base, made_ms, writer) }
    }

    /// The same memory, though others refer to it.
    #[cfg(broken_reuse_held)]
    pub(super) fn twin(&self) -> Self {
        let (base, segment, made_here) = (self.base, self.segment.clone(), self.made_here);
        Self { base, segment, made_here, made_ms: self.made_ms, held: OnceLock::new() }
    }

    /// Its memory for another life, unless somebody still refers to it.
    pub(super) fn recycle(self) -> std::result::Result<SegmentWriter, Self> {
        let Self { base, segment, made_here, made_ms, held } = self;
        recycle(segment).map_err(|segment| Self { base, segment, made_here, made_ms, held })
    }

    /// Counts its bytes in `held` for as long as anybody refers to it: it is dropped.
    pub(super) fn count_in(&self, held: &Arc<AtomicU64>) {
        let bytes = self.segment.capacity() as u64;
        self.held.get_or_init(|| {
            held.fetch_add(bytes, Ordering::Relaxed);
            Held { bytes, of: held.clone() }
        });
    }

    /// The record at `position`, which lies in this file.
    #[inline]
    pub(crate) fn record(&self, position: u64) -> std::result::Result<Record<'_>, &'static str> {
        let at = usize::try_from(position - self.base).unwrap_or(usize::MAX);
        let bytes = self.segment.read(at..self.segment.published());
        Record::parse(bytes.ok_or("the position is not committed")?, position)
    }

    /// Asks the processor for the header of a record that will be read soon.
    #[inline]
    pub(super) fn expect(&self, position: u64) {
        let at = usize::try_from(position.wrapping_sub(self.base)).unwrap_or(usize::MAX);
        self.segment.expect_read(at);
    }

    /// Its first record.
    pub(super) fn first_record(&self) -> std::result::Result<Record<'_>, &'static str> {
        self.record(self.base + HEAD as u64)
    }

    /// The position behind its last byte.
    pub(crate) fn end(&self) -> u64 {
        self.base + self.segment.capacity() as u64
    }

    pub(crate) fn name(&self) -> String {
        file_name(self.base)
    }
}

/// Bytes of a dropped file that deliveries keep alive.
#[derive(Debug)]
struct Held {
    bytes: u64,
    of: Arc<AtomicU64>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.of.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The file that `position` lies in.
#[inline]
pub(crate) fn file_of(files: &[Counted<LogFile>], position: u64) -> Option<&Counted<LogFile>> {
    let behind = files.partition_point(|file| file.base <= position);
    files.get(behind.checked_sub(1)?).filter(|file| position < file.end())
}

/// Where a new log file goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) store_id: u64,
    pub(super) base: u64,
    /// The end of the file before it: so a missing one is noticed.
    pub(super) after: u64,
    pub(super) made_ms: u64,
}

impl Place {
    fn head(self, size: u64) -> [u8; HEAD] {
        let Self { store_id, base, after, made_ms } = self;
        Head { after, made_ms, ..Head::new(KIND, store_id, base, size) }.encode()
    }
}

/// Makes an empty log file, complete and durable before it bears its name.
///
/// If it will be filled soon, its pages are to be large ones, which are faulted in at less cost.
pub(super) fn create(
    storage: &dyn Storage,
    place: Place,
    size: u64,
    soon: bool,
) -> Result<SegmentWriter> {
    let failed = |action, source| match io_error(storage, action, &file_name(place.base), source) {
        crate::Error::DiskFull { file, .. } => crate::Error::DiskFull { file, needed: size },
        other => other,
    };
    let file = storage.create(UNPLACED, size).map_err(|e| failed("create", e))?;
    let made = || -> Result<Region> {
        file.write_at(0, &place.head(size)).map_err(|e| failed("write", e))?;
        file.sync().map_err(|e| failed("sync", e))?;
        let region = file.map().map_err(|e| failed("map", e))?;
        rename(storage, UNPLACED, place)?;
        if soon {
            region.prefer_large_pages();
        }
        Ok(region)
    };
    let region = made().inspect_err(|_| discard(storage, UNPLACED, place))?;
    // The file is longer than a head: `segment_bytes` has a lower bound.
    Ok(Carver::new(region).carve(size as usize, HEAD).expect("a whole region can be carved"))
}

/// Puts a file with `content` behind its head in the place of whatever is there: complete and
/// durable before it bears its name.
pub(super) fn replace(
    storage: &dyn Storage,
    place: Place,
    size: u64,
    content: &[u8],
) -> Result<()> {
    let name = file_name(place.base);
    let failed = |action, source| io_error(storage, action, &name, source);
    let file = storage.create(UNPLACED, size).map_err(|e| failed("create", e))?;
    let wrote = file.write_at(0, &place.head(size));
    let wrote = wrote.and_then(|()| file.write_at(HEAD as u64, content));
    wrote.map_err(|e| failed("write", e))?;
    file.sync().map_err(|e| failed("sync", e))?;
    rename(storage, UNPLACED, place)
}

/// Gives a dropped file's memory a new place: the head first, then the name.
pub(super) fn reuse(
    storage: &dyn Storage,
    place: Place,
    spare: &str,
    mut writer: SegmentWriter,
) -> Result<SegmentWriter> {
    let size = writer.segment().capacity() as u64;
    writer.write(&place.head(size));
    writer.publish();
    let synced = writer.segment().sync(0..HEAD).map_err(|e| io_error(storage, "sync", spare, e));
    let placed = synced.and_then(|()| rename(storage, spare, place));
    placed.inspect_err(|_| discard(storage, spare, place))?;
    Ok(writer)
}

fn rename(storage: &dyn Storage, from: &str, place: Place) -> Result<()> {
    let name = file_name(place.base);
    storage.rename(from, &name).map_err(|e| io_error(storage, "rename", &name, e))?;
    storage.sync_folder(FOLDER).map_err(|e| io_error(storage, "sync", FOLDER, e))
}

/// Removes a file that could not be placed, under whichever name it has; recovery passes over it
/// if that fails, too.
fn discard(storage: &dyn Storage, from: &str, place: Place) {
    let _ = storage.unlink(from);
    let _ = storage.unlink(&file_name(place.base));
}

pub(super) fn file_name(base: u64) -> String {
    format!("{FOLDER}/{base:020}")
}

/// The base that a file name tells, without the folder.
pub(super) fn base_of(name: &str) -> Option<u64> {
    name.parse().ok().filter(|_| name.len() == 20)
}

/// The bases of all files that have a place, ascending.
pub(super) fn bases(storage: &dyn Storage) -> Result<Vec<u64>> {
    let names = storage.list(FOLDER).map_err(|e| io_error(storage, "list", FOLDER, e))?;
    Ok(names.iter().filter_map(|name| base_of(name)).collect())
}
