//! The load: sessions that grow turn by turn, over system prompts that many of them share.
//!
//! Prompt and reply lengths have the means of Mooncake's published conversation trace (12,035 tokens in, 343 out). The
//! generator is deterministic: a seed gives the same sessions.

/// A small random number generator (SplitMix64).
#[derive(Debug, Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// From 0 up to 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(crate) fn below(&mut self, count: usize) -> usize {
        usize::try_from(self.next() % count.max(1) as u64).unwrap_or(0)
    }

    /// Exponential with this mean.
    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }
}

pub(crate) fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// System prompts; the most popular one begins one session in ten.
const SYSTEMS: usize = 2_000;
/// The longest context; a session that reaches it starts again.
const LONGEST: u32 = 32_768;
/// Mean tokens that a turn adds: what the user sends. The reply comes on top.
const MEAN_ADDED: f64 = 350.0;
/// Mean tokens of a reply.
const MEAN_REPLY: f64 = 343.0;
/// Turns after which a session begins again with a new conversation, on average.
const MEAN_TURNS: f64 = 16.0;

/// One conversation of a session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Session {
    /// Names the conversation; its blocks follow from it.
    pub(crate) conversation: u64,
    pub(crate) system: u32,
    pub(crate) system_tokens: u32,
    /// Tokens of the prompt and reply so far.
    pub(crate) tokens: u32,
    /// The node of the last turn, for the sticky policy.
    pub(crate) last: u32,
}

/// What a turn sends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    /// Tokens of the prompt: everything before, and what is new.
    pub(crate) prompt: u32,
    pub(crate) reply: u32,
    /// Tokens that an infinite node would have: the conversation so far.
    pub(crate) known: u32,
}

impl Session {
    /// A conversation that begins.
    pub(crate) fn fresh(random: &mut Random) -> Self {
        // Zipf-like: the rank is spread over powers, so that few prompts serve most sessions.
        let rank = (SYSTEMS as f64).powf(random.unit()) - 1.0;
        let system = rank as u32;
        let system_tokens = 512 + u32::try_from(mix(u64::from(system)) % 4_096).unwrap_or(0);
        Self { conversation: random.next(), system, system_tokens, tokens: 0, last: u32::MAX }
    }

    /// The next turn.
    pub(crate) fn turn(&mut self, random: &mut Random) -> Turn {
        let ends = self.tokens > 0 && random.unit() < 1.0 / MEAN_TURNS;
        if ends || self.tokens > LONGEST {
            *self = Self::fresh(random);
        }
        let known = self.tokens;
        let length = |mean: f64, random: &mut Random| random.exponential(mean).clamp(1.0, 16_000.0) as u32;
        let added = length(MEAN_ADDED, random);
        let before = if known == 0 { self.system_tokens } else { known };
        let (prompt, reply) = (before + added, length(MEAN_REPLY, random));
        self.tokens = prompt + reply;
        Turn { prompt, reply, known }
    }

    /// Hashes of the first `blocks` blocks: those inside the system prompt are shared.
    pub(crate) fn blocks(&self, blocks: u32, block_tokens: u32, hashes: &mut Vec<u64>) {
        hashes.clear();
        let shared = self.system_tokens / block_tokens;
        hashes.extend((0..blocks).map(|place| {
            let of = if place < shared { mix(u64::from(self.system) + 1) } else { self.conversation };
            mix(of ^ (u64::from(place) + 1).wrapping_mul(0xd6e8_feb8_6659_fd93))
        }));
    }
}
