//! KV events: blocks over rows, bytes as vLLM's readers expect them, and the sockets.

use std::time::Duration;

use poncho_cluster::kv_events::{Batch, BlockLog, Event, KvEvents};
use poncho_kinds::{Key, Tier};
use serde::Deserialize;
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

fn key(number: u8) -> Key {
    Key::from_bytes([number; 32])
}

fn hashes(events: &[Event]) -> Vec<u64> {
    let of = |event: &Event| match event {
        Event::BlockStored { block_hashes, .. } | Event::BlockRemoved { block_hashes, .. } => block_hashes.clone(),
        Event::AllBlocksCleared => Vec::new(),
    };
    events.iter().flat_map(of).collect()
}

#[test]
fn a_block_of_two_rows_is_stored_and_removed_once() {
    let mut log = BlockLog::new(4);
    let tokens: Vec<u32> = (0..14).collect();
    let first = log.stored(key(1), &tokens[..9], Tier::Ram);
    assert!(matches!(&first[..], [Event::BlockStored { parent: None, token_ids, .. }] if token_ids.len() == 8));
    let second = log.stored(key(2), &tokens, Tier::Ram);
    let [Event::BlockStored { parent, token_ids, block_hashes, .. }] = &second[..] else { panic!("{second:?}") };
    assert_eq!((parent, token_ids.as_slice()), (&hashes(&first).last().copied(), &tokens[8..12]));
    assert_eq!(block_hashes.len(), 1);
    assert_eq!(log.removed(&key(1)), [], "the longer row still has them");
    let gone = log.removed(&key(2));
    assert_eq!(hashes(&gone), [hashes(&first), hashes(&second)].concat());
    assert_eq!(log.removed(&key(2)), []);
    assert_eq!(log.cleared(), [Event::AllBlocksCleared]);
}

#[test]
fn a_row_that_moves_to_disk_is_announced_there() {
    let mut log = BlockLog::new(4);
    let stored = log.stored(key(1), &[1, 2, 3, 4], Tier::Ram);
    assert_eq!(log.stored(key(1), &[1, 2, 3, 4], Tier::Ram), [], "nothing new");
    let moved = log.stored(key(1), &[1, 2, 3, 4], Tier::Disk);
    assert!(
        matches!(&moved[..], [Event::BlockRemoved { medium: "CPU", .. }, Event::BlockStored { medium: "DISK", .. }]),
        "{moved:?}"
    );
    assert_eq!(hashes(&moved)[0], hashes(&stored)[0]);
}

/// What a reader of vLLM's events expects, field by field.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(untagged)]
enum Read {
    Stored(String, Vec<i64>, Option<i64>, Vec<u32>, usize, Option<i64>, Option<String>, Option<String>),
    Removed(String, Vec<i64>, Option<String>),
    Cleared((String,)),
}

fn read(payload: &[u8]) -> Vec<Read> {
    let (time, events, rank): (f64, Vec<Read>, Option<i32>) = rmp_serde::from_slice(payload).unwrap();
    assert!(time >= 0.0 && rank == Some(0));
    events
}

#[test]
fn the_bytes_are_positional_arrays_with_the_names_of_vllm() {
    let stored = Event::BlockStored {
        block_hashes: vec![7, 8],
        parent: Some(6),
        token_ids: vec![1, 2, 3, 70_000],
        block_size: 2,
        medium: "CPU",
    };
    let removed = Event::BlockRemoved { block_hashes: vec![1 << 62], medium: "DISK" };
    let batch = Batch { time: 1.5, events: vec![stored, removed, Event::AllBlocksCleared] };
    let bytes = batch.encode();
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(
        read(&bytes),
        [
            Read::Stored(
                "BlockStored".to_owned(),
                vec![7, 8],
                Some(6),
                vec![1, 2, 3, 70_000],
                2,
                None,
                some("CPU"),
                None
            ),
            Read::Removed("BlockRemoved".to_owned(), vec![1 << 62], some("DISK")),
            Read::Cleared(("AllBlocksCleared".to_owned(),)),
        ]
    );
    // Byte for byte what msgspec 0.22 writes for vLLM's structs with these values: a change here breaks readers.
    let expected = "93cb3ff80000000000009398ab426c6f636b53746f7265649207080694010203ce0001117002c0a3435055c093ac\
                    426c6f636b52656d6f76656491cf4000000000000000a44449534b91b0416c6c426c6f636b73436c656172656400";
    assert_eq!(poncho_kinds::to_hex(&bytes), expected);
}

/// A batch that found no room in the queue had no number, so that nobody could see the gap.
#[tokio::test]
async fn dropped_batches_leave_a_gap_in_the_numbers() {
    let events = KvEvents::bind("tcp://127.0.0.1:0", Some("tcp://127.0.0.1:0"), "kv").await.unwrap();
    let cleared = || vec![Event::AllBlocksCleared];
    // Nothing is sent before the first wait: this runtime has one thread.
    let mut attempts = (0..10_100).map(|_| events.publish(cleared())).collect::<Vec<bool>>();
    assert!(attempts.contains(&false), "the queue took everything");
    let mut asker = DealerSocket::new();
    asker.connect(events.replay().unwrap()).await.unwrap();
    while attempts.last() == Some(&false) {
        tokio::time::sleep(Duration::from_millis(1)).await;
        attempts.push(events.publish(cleared()));
    }
    let last = attempts.len() as u64 - 1;
    let within = Duration::from_secs(30);
    let number = tokio::time::timeout(within, async {
        loop {
            let mut question = ZmqMessage::from(Vec::new());
            question.push_back(last.to_be_bytes().to_vec().into());
            asker.send(question).await.unwrap();
            let answer = asker.recv().await.unwrap();
            // Nothing but the end: it was not sent yet.
            let number = i64::from_be_bytes(answer.get(answer.len() - 2).unwrap().as_ref().try_into().unwrap());
            if number != -1 {
                return number;
            }
        }
    });
    assert_eq!(number.await.unwrap(), last as i64, "the batches that were dropped have numbers");
}

#[tokio::test]
async fn a_subscriber_gets_batches_and_asks_again_for_missed_ones() {
    let within = Duration::from_secs(30);
    let events = KvEvents::bind("tcp://127.0.0.1:0", Some("tcp://127.0.0.1:0"), "kv").await.unwrap();
    let mut log = BlockLog::new(2);
    assert!(events.publish(log.stored(key(1), &[1, 2], Tier::Ram)));

    let mut subscriber = SubSocket::new();
    subscriber.connect(events.endpoint()).await.unwrap();
    subscriber.subscribe("kv").await.unwrap();
    // A subscription takes a moment to arrive: batches go out until one is received.
    let mut row = 2;
    let received = loop {
        events.publish(log.stored(key(row), &[u32::from(row), 9], Tier::Ram));
        row += 1;
        if let Ok(message) = tokio::time::timeout(Duration::from_millis(100), subscriber.recv()).await {
            break message.unwrap();
        }
        assert!(row < 250, "nothing was received");
    };
    assert_eq!(received.get(0).unwrap().as_ref(), b"kv");
    let number = u64::from_be_bytes(received.get(1).unwrap().as_ref().try_into().unwrap());
    assert!(number >= 1, "the first batch was sent before anybody listened");
    assert!(matches!(&read(received.get(2).unwrap())[..], [Read::Stored(..)]));

    let mut asker = DealerSocket::new();
    asker.connect(events.replay().unwrap()).await.unwrap();
    let mut question = ZmqMessage::from(Vec::new());
    question.push_back(0_u64.to_be_bytes().to_vec().into());
    asker.send(question).await.unwrap();
    let mut numbers = Vec::new();
    loop {
        let answer = tokio::time::timeout(within, asker.recv()).await.unwrap().unwrap();
        let bytes: [u8; 8] = answer.get(answer.len() - 2).unwrap().as_ref().try_into().unwrap();
        if i64::from_be_bytes(bytes) == -1 {
            break;
        }
        numbers.push(u64::from_be_bytes(bytes));
    }
    assert!(numbers.len() as u64 > number, "{numbers:?}");
    assert_eq!(numbers[..2], [0, 1]);
    assert!(KvEvents::bind("tcp://127.0.0.1:none", None, "").await.is_err());
}
