//! The simulated network: messages that arrive late, twice or never, partitions, and a bus that goes away.

use std::collections::BTreeMap;

/// SplitMix64: a seed gives the same run everywhere.
#[derive(Debug)]
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below(&mut self, count: usize) -> usize {
        usize::try_from(self.next() % count as u64).unwrap()
    }

    /// True in `permille` of a thousand cases.
    pub(super) fn happens(&mut self, permille: u64) -> bool {
        self.next() % 1_000 < permille
    }
}

/// Milliseconds that a message takes on a good day.
const QUICK: u64 = 20;

/// Messages on their way, by the time of their arrival.
#[derive(Debug)]
pub(super) struct Network<M> {
    queue: BTreeMap<(u64, u64), M>,
    sent: u64,
    pub(super) drop_permille: u64,
    pub(super) repeat_permille: u64,
    pub(super) longest_delay: u64,
    /// Nodes that a router cannot reach, as (router, node), and until when.
    cuts: BTreeMap<(usize, usize), u64>,
    pub(super) bus_away_until: u64,
}

impl<M: Clone> Network<M> {
    pub(super) fn new(random: &mut Random) -> Self {
        Self {
            queue: BTreeMap::new(),
            sent: 0,
            drop_permille: random.next() % 300,
            repeat_permille: random.next() % 100,
            longest_delay: 1 + random.next() % 2_500,
            cuts: BTreeMap::new(),
            bus_away_until: 0,
        }
    }

    /// Everything arrives from now on.
    pub(super) fn heal(&mut self) {
        (self.drop_permille, self.repeat_permille, self.longest_delay, self.bus_away_until) = (0, 0, 1, 0);
        self.cuts.clear();
    }

    pub(super) fn cut(&mut self, router: usize, node: usize, until: u64) {
        self.cuts.insert((router, node), until);
    }

    pub(super) fn is_cut(&self, router: usize, node: usize, now: u64) -> bool {
        self.cuts.get(&(router, node)).is_some_and(|until| now < *until)
    }

    /// Sends a message between a router and a node.
    pub(super) fn send(&mut self, random: &mut Random, now: u64, (router, node): (usize, usize), message: &M) {
        if self.is_cut(router, node, now) {
            return;
        }
        let copies = 1 + u64::from(random.happens(self.repeat_permille));
        for _ in 0..copies {
            if random.happens(self.drop_permille) {
                continue;
            }
            self.sent += 1;
            let arrives = now + QUICK + random.next() % self.longest_delay;
            self.queue.insert((arrives, self.sent), message.clone());
        }
    }

    /// The next message that has arrived.
    pub(super) fn receive(&mut self, now: u64) -> Option<M> {
        let first = self.queue.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }
}
