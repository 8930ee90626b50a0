//! What the target `record` in `fuzz/` runs: whatever the bytes are, nothing panics, and what is
//! decoded is what was encoded.

use super::draft::{Draft, Outline, Pending, Source};
use super::record::{CONTINUED, CONTINUES, HEADER, KEYED, Kind, Place, Record, u32_at, u64_at};
use super::topic_event::TopicEvent;
use crate::properties::Properties;

/// Decodes `bytes` as a record, as properties and as a topic's event; then writes a record that is
/// made of them and reads it back.
pub fn decode(bytes: &[u8]) {
    Properties(bytes).iter().for_each(drop);
    Properties(bytes).keys().for_each(drop);
    Properties(bytes).flag();
    if let Some(event) = TopicEvent::decode(bytes) {
        assert_eq!(TopicEvent::decode(&event.encode()), Some(event));
    }
    if bytes.len() < HEADER {
        return;
    }
    if let Ok(record) = Record::parse(bytes, u64_at(bytes, 16)) {
        record.verify(u64_at(bytes, 40));
        let parts = record.topic().len() + record.properties().len() + record.body().len();
        assert!((parts + HEADER..parts + HEADER + 8).contains(&record.length()));
        Properties(record.properties()).iter().for_each(drop);
        let _ = (record.born_ms(), record.offset(), record.queue(), record.reconsumed());
    }
    write_and_read(bytes);
}

fn write_and_read(bytes: &[u8]) {
    let (head, rest) = bytes.split_at(HEADER);
    let (topic, rest) = rest.split_at(usize::from(head[0]).min(rest.len()));
    let (properties, body) = rest.split_at(usize::from(head[1]).min(rest.len()));
    let topic = std::str::from_utf8(topic).unwrap_or("t");
    let kind = if head[2] & 1 == 0 { Kind::Message } else { Kind::Topic };
    let (incarnation, queue) = (u32_at(head, 8), u16::from(head[12]));
    let pending = Pending {
        tag_hash: u32_at(head, 4).cast_signed(),
        born_ms: (head[13] & 1 == 0).then_some(u64_at(head, 48)),
        properties: Source::Encoded(properties),
        body,
    };
    let (position, offset, store_ms) = (u64_at(head, 16), u64_at(head, 24), u64_at(head, 32));
    let store_id = u64_at(head, 40);
    let outline = Outline::new(store_id, kind, incarnation, topic);
    let mut draft = Draft::blank(&outline);
    draft.fill(&outline, queue, head[3] & (CONTINUES | CONTINUED), pending);
    let mut written = vec![0xee; draft.length()];
    draft.write(Place { position, offset, store_ms }, &mut written);
    let record = Record::parse(&written, position).expect("what was written is a record");
    assert!(record.verify(store_id));
    let parts = (topic.as_bytes(), properties, body);
    assert_eq!((record.topic(), record.properties(), record.body()), parts);
    assert_eq!(record.has(KEYED), Properties(properties).keys().next().is_some());
    assert_eq!((record.offset(), record.store_ms(), record.kind()), (offset, store_ms, kind));
    assert_eq!((record.incarnation(), record.queue()), (incarnation, queue));
    assert_eq!(record.tag_hash(), pending.tag_hash);
    assert_eq!(record.length(), written.len());

    let at = u64_at(head, 56) as usize % written.len();
    written[at] ^= head[14].max(1);
    let sound = Record::parse(&written, position).is_ok_and(|record| record.verify(store_id));
    assert!(!sound, "a change of byte {at} was not noticed");
}

#[cfg(test)]
mod tests {
    #[test]
    fn samples_of_records() {
        let folder =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz-corpus/record");
        let mut count = 0;
        for sample in std::fs::read_dir(folder).unwrap() {
            super::decode(&std::fs::read(sample.unwrap().path()).unwrap());
            count += 1;
        }
        assert!(count > 0);
        let mut bytes = vec![0_u8; 300];
        for round in 0..2_000_usize {
            let at = round * 7919 % bytes.len();
            bytes[at] = bytes[at].wrapping_mul(31).wrapping_add(round as u8);
            super::decode(&bytes[..bytes.len() - round % 240]);
        }
    }
}
