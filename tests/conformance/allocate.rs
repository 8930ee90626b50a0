//! How RocketMQ's strategies deal queues out. They answer for one member at a time; ours are asked
//! once, and the answer for each member is compared.

use super::{NO_NULL, Vectors};
use rocklet::{
    AssignStrategy, Assignment, Averagely, ByCircle, ConsistentHash, Error, LabelledQueue,
    MachineRoom, MachineRoomNearby,
};
use serde_json::Value;

const NO_OWN_ID: &str =
    "one call assigns for all members, so there is no id of one's own to be missing [ALLOC-1]";
const BY_TOPIC: &str =
    "each topic of a group is dealt out by itself, where RocketMQ is asked once a topic [REB-2]";
const UNSIGNED: &str = "a count of places is unsigned: a negative one does not compile [ALLOC-7]";

#[test]
fn alloc_2_averagely() {
    grid("allocate_averagely.json");
}

#[test]
fn alloc_3_by_circle() {
    grid("allocate_averagely_by_circle.json");
}

#[test]
fn alloc_7_consistent_hash() {
    grid("allocate_consistent_hash.json");
}

#[test]
fn alloc_7_consistent_hash_of_given_names() {
    Vectors::read("allocate_consistent_hash_explicit.json").run(|case| match &case["kind"] {
        kind if kind == "hash" => {
            let place = ConsistentHash::new().place(case["key"].as_str().unwrap());
            assert_eq!(u64::from(place), case["hash"].as_u64().unwrap(), "{case}");
            None
        }
        kind if kind == "construct" => {
            assert!(case["virtual_nodes"].as_i64().unwrap() < 0, "{case}");
            Some(UNSIGNED)
        }
        _ => {
            let (queues, members) = (queues(&case["queues"]), names(&case["consumers"]));
            let assigned = ring(case).assign(&queues, &members, &Assignment::new());
            let mut anonymous = false;
            for (member, expected) in case["result_by_consumer"].as_object().unwrap() {
                if member.is_empty() {
                    // The others deal with it as with any name, and so do we.
                    anonymous = true;
                } else {
                    compare(&assigned, member, &queues, expected, case);
                }
            }
            anonymous.then_some(NO_OWN_ID)
        }
    });
}

#[test]
fn alloc_5_machine_room() {
    Vectors::read("allocate_by_machine_room.json").run(|case| {
        if case["consumer_idcs"].is_null() {
            return Some(NO_NULL);
        }
        let queues = queues(&case["queues"]);
        if mixes_topics(&queues) {
            return Some(BY_TOPIC);
        }
        each(case, &queues, &names(&case["consumers"]));
        None
    });
}

#[test]
fn alloc_6_machine_room_nearby() {
    Vectors::read("allocate_machine_room_nearby.json").run(|case| {
        let queues = queues(&case["queues"]);
        if mixes_topics(&queues) {
            return Some(BY_TOPIC);
        }
        each(case, &queues, &names(&case["consumers"]));
        None
    });
}

#[test]
fn alloc_1_edges() {
    Vectors::read("allocate_edge.json").run(|case| {
        let Some(own) = case["current_cid"].as_str().filter(|own| !own.is_empty()) else {
            return Some(NO_OWN_ID);
        };
        let queues = queues(&case["queues"]);
        if case["strategy"] != "CONSISTENT_HASH" && mixes_topics(&queues) {
            return Some(BY_TOPIC);
        }
        let members = names(&case["consumers"]);
        match strategy(case).assign(&queues, &members, &Assignment::new()) {
            Ok(assignment) => {
                let expected = self::queues(&case["result"]["ok"]);
                assert!(case["result"]["ok"].is_array(), "{case}");
                assert_eq!(assignment.get(own).cloned().unwrap_or_default(), expected, "{case}");
            }
            Err(Error::Strategy { .. }) => assert!(case["result"]["error"].is_string(), "{case}"),
            Err(other) => panic!("{other}: {case}"),
        }
        None
    });
}

#[test]
fn vec_4_vec_5_vec_6_shares_of_the_specification() {
    let even: [(u16, u16, &str, &str); 6] = [
        (4, 2, "0 1/2 3", "0 2/1 3"),
        (7, 3, "0 1 2/3 4/5 6", "0 3 6/1 4/2 5"),
        (8, 3, "0 1 2/3 4 5/6 7", "0 3 6/1 4 7/2 5"),
        (10, 4, "0 1 2/3 4 5/6 7/8 9", "0 4 8/1 5 9/2 6/3 7"),
        (16, 7, "0 1 2/3 4 5/6 7/8 9/10 11/12 13/14 15", "0 7 14/1 8 15/2 9/3 10/4 11/5 12/6 13"),
        (3, 5, "0/1/2//", "0/1/2//"),
    ];
    for (queues, members, averagely, by_circle) in even {
        assert_eq!(shares(&Averagely, "B", queues, members), averagely);
        assert_eq!(shares(&ByCircle, "B", queues, members), by_circle);
    }
    assert_eq!(shares(&MachineRoom::new(["room"]), "room@B", 7, 3), "0 1 6/2 3/4 5");
    let ring = ConsistentHash::new();
    let rest = "1 2 3 4 5 6 8 9 10 11 12 13 14 15";
    assert_eq!(shares(&ring, "B", 16, 2), format!("0 7/{rest}"));
    let rest = "1 2 3 4 5 6 8 9 10 11 14 15";
    assert_eq!(shares(&ring, "B", 16, 3), format!("0 7/{rest}/12 13"));
    assert_eq!(shares(&ring, "B", 16, 4), "0 7/1 3 4 5 6 8 9 11 14 15/12/2 10 13");
}

/// The numbers of the queues of each member, in the order of their names.
fn shares(strategy: &dyn AssignStrategy, label: &str, queues: u16, members: u16) -> String {
    let queues: Vec<_> = (0..queues).map(|nth| LabelledQueue::new("T", label, nth)).collect();
    let members: Vec<_> = (0..members).map(|nth| format!("CID{nth}")).collect();
    let assigned = strategy.assign(&queues, &members, &Assignment::new()).unwrap();
    let share = |member: &String| {
        let queues = assigned.get(member).into_iter().flatten();
        let numbers: Vec<_> = queues.map(|queue| queue.id().queue().to_string()).collect();
        numbers.join(" ")
    };
    members.iter().map(share).collect::<Vec<_>>().join("/")
}

/// Cases that say how many queues and members there are.
fn grid(file: &'static str) {
    Vectors::read(file).run(|case| {
        let text = |field: &str| case[field].as_str().unwrap();
        let count = |field: &str| u16::try_from(case[field].as_u64().unwrap()).unwrap();
        let queue = |nth| LabelledQueue::new(text("topic"), text("broker"), nth);
        let queues: Vec<_> = (0..count("queue_count")).map(queue).collect();
        let member = |nth| format!("{}{nth}", text("consumer_prefix"));
        let members: Vec<_> = (0..count("consumer_count")).map(member).collect();
        each(case, &queues, &members);
        None
    });
}

/// Compares the result of every member.
fn each(case: &Value, queues: &[LabelledQueue], members: &[String]) {
    let assigned = strategy(case).assign(queues, members, &Assignment::new());
    let results = case["result_per_consumer"].as_array().unwrap();
    assert_eq!(results.len(), members.len(), "{case}");
    for (member, expected) in members.iter().zip(results) {
        compare(&assigned, member, queues, expected, case);
    }
}

fn compare(
    assigned: &rocklet::Result<Assignment>,
    member: &str,
    queues: &[LabelledQueue],
    expected: &Value,
    case: &Value,
) {
    match assigned {
        Ok(assignment) => {
            let indexes = expected["ok"].as_array().unwrap_or_else(|| panic!("{member}: {case}"));
            let queue =
                |index: &Value| queues[usize::try_from(index.as_u64().unwrap()).unwrap()].clone();
            let expected: Vec<_> = indexes.iter().map(queue).collect();
            let share = assignment.get(member).cloned().unwrap_or_default();
            assert_eq!(share, expected, "{member}: {case}");
        }
        Err(Error::Strategy { .. }) => assert!(expected["error"].is_string(), "{member}: {case}"),
        Err(other) => panic!("{other}: {case}"),
    }
}

fn strategy(case: &Value) -> Box<dyn AssignStrategy> {
    let name = case["strategy"].as_str().unwrap();
    let strategy: Box<dyn AssignStrategy> = match name {
        "AVG" => Box::new(Averagely),
        "AVG_BY_CIRCLE" => Box::new(ByCircle),
        "CONSISTENT_HASH" => Box::new(ring(case)),
        "MACHINE_ROOM" => Box::new(MachineRoom::new(names(&case["consumer_idcs"]))),
        "MACHINE_ROOM_NEARBY-AVG" => Box::new(nearby(Averagely)),
        "MACHINE_ROOM_NEARBY-AVG_BY_CIRCLE" => Box::new(nearby(ByCircle)),
        "MACHINE_ROOM_NEARBY-CONSISTENT_HASH" => Box::new(nearby(ConsistentHash::new())),
        other => panic!("no strategy {other}: {case}"),
    };
    assert_eq!(strategy.name(), name);
    strategy
}

fn ring(case: &Value) -> ConsistentHash {
    match case["virtual_nodes"].as_u64() {
        Some(count) => ConsistentHash::new().virtual_nodes(usize::try_from(count).unwrap()),
        None => ConsistentHash::new(),
    }
}

/// A room is what stands before the first `-`.
fn nearby(inner: impl AssignStrategy + 'static) -> MachineRoomNearby {
    let room = |text: &str| text.split_once('-').map(|(room, _)| room.to_owned());
    MachineRoomNearby::new(
        inner,
        move |queue| room(queue.label()).unwrap_or_default(),
        move |member| room(member).unwrap_or_default(),
    )
}

/// Queues are `[topic, broker, number]`; a missing list is an empty one.
fn queues(list: &Value) -> Vec<LabelledQueue> {
    let queues: Vec<(String, String, u16)> =
        serde_json::from_value(list.clone()).unwrap_or_default();
    queues.into_iter().map(|(topic, label, nth)| LabelledQueue::new(topic, label, nth)).collect()
}

/// Whether the queues are of several topics: then a run of neighbours may reach over two of them.
fn mixes_topics(queues: &[LabelledQueue]) -> bool {
    queues.iter().any(|queue| queue.id().topic() != queues[0].id().topic())
}

fn names(list: &Value) -> Vec<String> {
    serde_json::from_value(list.clone()).unwrap_or_default()
}
