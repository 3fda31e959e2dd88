//! How many CPUs other programs use, from the counters of the kernel.
//!
//! Read by `threads.rs` before a decode call, at most ten times a second. Files under `/proc` are memory: reading them waits
//! for nothing. Where they cannot be read, nothing is adapted. Pure apart from the two reads.

use std::time::{Duration, Instant};

/// The shortest time between two readings: the counters advance a hundred times a second.
const INTERVAL: Duration = Duration::from_millis(100);
/// A thread is given up if others take this much of a CPU that it would need,
const TAKEN: f64 = 0.5;
/// and comes back once they take no more than this.
const LEFT: f64 = 0.25;

/// The readings.
pub(super) struct Neighbours {
    /// The CPUs that this process may use.
    allowed: Vec<usize>,
    last: Sample,
    at: Instant,
}

/// Ticks since the start of the machine and of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sample {
    /// That the allowed CPUs were busy, with this process too.
    busy: u64,
    /// That this process computed.
    own: u64,
}

impl Neighbours {
    /// `None` if the kernel does not report what is needed.
    pub(super) fn new() -> Option<Self> {
        let allowed = allowed_cpus(&read("/proc/self/status")?)?;
        let last = Sample::read(&allowed)?;
        Some(Self { allowed, last, at: Instant::now() })
    }

    /// The number of threads for the next decode call, of at most `most`, where the last one had `now`.
    pub(super) fn threads(&mut self, now: i32, most: i32) -> i32 {
        let passed = self.at.elapsed();
        if passed < INTERVAL {
            return now;
        }
        let Some(sample) = Sample::read(&self.allowed) else { return most };
        let seconds = passed.as_secs_f64() * rustix::param::clock_ticks_per_second() as f64;
        let others = sample.others_since(self.last) as f64 / seconds;
        (self.last, self.at) = (sample, Instant::now());
        chosen(now, most, self.allowed.len() as f64 - others)
    }
}

impl Sample {
    fn read(allowed: &[usize]) -> Option<Self> {
        let (own, nice) = own_ticks(&read("/proc/self/stat")?)?;
        // Programs with a lower priority barely disturb one that has the usual one.
        let busy = busy_ticks(&read("/proc/stat")?, allowed, nice > 0)?;
        Some(Self { busy, own })
    }

    /// What other programs used since an earlier sample.
    fn others_since(self, earlier: Self) -> u64 {
        let busy = self.busy.saturating_sub(earlier.busy);
        busy.saturating_sub(self.own.saturating_sub(earlier.own))
    }
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// The number of threads where `free` CPUs are left by others. Between the two limits it stays as it is.
fn chosen(now: i32, most: i32, free: f64) -> i32 {
    let whole = |cpus: f64| {
        // Far inside the range of both types: a number of CPUs.
        #[expect(clippy::cast_possible_truncation, reason = "clamped to the number of threads first")]
        let threads = cpus.floor().clamp(1.0, f64::from(most)) as i32;
        threads
    };
    let (fewest, enough) = (whole(free + LEFT), whole(free + TAKEN));
    now.clamp(fewest, enough)
}

/// Ticks that CPUs were busy, in the lines `cpuN user nice system idle iowait irq softirq steal ..`.
fn busy_ticks(stat: &str, allowed: &[usize], with_nice: bool) -> Option<u64> {
    let mut busy = 0u64;
    let mut found = 0usize;
    for line in stat.lines().take_while(|line| line.starts_with("cpu")) {
        let mut words = line.split_ascii_whitespace();
        let number = words.next().and_then(|name| name.strip_prefix("cpu")).and_then(|number| number.parse().ok());
        if !number.is_some_and(|number: usize| allowed.contains(&number)) {
            continue;
        }
        let ticks: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
        let [user, nice, system, _idle, _iowait, irq, softirq, steal, ..] = *ticks.as_slice() else { return None };
        let nice = if with_nice { nice } else { 0 };
        busy = [user, nice, system, irq, softirq, steal].into_iter().fold(busy, u64::saturating_add);
        found += 1;
    }
    (found == allowed.len()).then_some(busy)
}

/// Ticks that this process computed, and its nice value. The name in front may contain anything, also parentheses.
fn own_ticks(stat: &str) -> Option<(u64, i64)> {
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
    // proc(5) counts from 1 with the process id and the name first: utime 14, stime 15, nice 19.
    let field = |number: usize| fields.get(number - 3).copied();
    let ticks = |number| field(number)?.parse::<u64>().ok();
    Some((ticks(14)?.checked_add(ticks(15)?)?, field(19)?.parse().ok()?))
}

/// The CPUs of `Cpus_allowed_list:`, such as `0-3,8`.
fn allowed_cpus(status: &str) -> Option<Vec<usize>> {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let mut cpus = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        // More than any machine has: a text that is something else.
        if last.checked_sub(first)? > 1 << 16 {
            return None;
        }
        cpus.extend(first..=last);
    }
    (!cpus.is_empty()).then_some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  30 3 30 900 30 3 3 3 0 0\n\
                        cpu0 10 1 10 300 10 1 1 1 0 0\n\
                        cpu1 20 2 20 600 20 2 2 2 0 0\n\
                        intr 12 0 0\nctxt 5\n";

    #[test]
    fn only_the_cpus_of_this_process_count() {
        assert_eq!(busy_ticks(STAT, &[0], false), Some(23));
        assert_eq!(busy_ticks(STAT, &[0, 1], false), Some(69));
        assert_eq!(busy_ticks(STAT, &[0, 1], true), Some(72), "programs of a lower priority beside one of the same");
        for (text, allowed) in [(STAT, &[2][..]), ("", &[0]), ("cpu0 1 2\n", &[0]), ("cpu0 a b c d e f g h\n", &[0])] {
            assert_eq!(busy_ticks(text, allowed, false), None, "{text}");
        }
    }

    #[test]
    fn the_own_time_is_read_behind_any_name() {
        let fields = "S 1 1 1 0 -1 4194560 100 0 0 0 7 5 0 0 20 3 8 0 12345 1 1";
        for name in ["poncho", "a b", "a) S 1 (b"] {
            assert_eq!(own_ticks(&format!("42 ({name}) {fields}")), Some((12, 3)), "{name}");
        }
        assert_eq!(own_ticks("42 (poncho) S 1"), None);
        assert_eq!(own_ticks(""), None);
    }

    #[test]
    fn lists_of_cpus_are_read() {
        let list = |text: &str| allowed_cpus(&format!("Name:\tx\nCpus_allowed_list:\t{text}\nMems:\t1\n"));
        assert_eq!(list("0"), Some(vec![0]));
        assert_eq!(list("0-2,5"), Some(vec![0, 1, 2, 5]));
        for wrong in ["", "a", "3-1", "0-99999999"] {
            assert_eq!(list(wrong), None, "{wrong}");
        }
        assert_eq!(allowed_cpus("Name:\tx\n"), None);
    }

    #[test]
    fn others_are_what_is_busy_without_this_process() {
        let earlier = Sample { busy: 100, own: 40 };
        assert_eq!(Sample { busy: 130, own: 50 }.others_since(earlier), 20);
        // The two counters are not read at the same moment.
        assert_eq!(Sample { busy: 105, own: 50 }.others_since(earlier), 0);
        assert_eq!(Sample { busy: 0, own: 0 }.others_since(earlier), 0);
    }

    /// Everyday use 5: a request beside one busy process took sixteen times as long.
    #[test]
    fn a_busy_neighbour_takes_a_thread_and_an_idle_one_gives_it_back() {
        for (now, free, expected) in [
            (2, 2.0, 2),
            (2, 1.6, 2),
            (2, 1.4, 1),
            (2, 1.0, 1),
            (2, 0.0, 1),
            (1, 1.4, 1),
            (1, 1.6, 1),
            (1, 1.8, 2),
            (1, 2.0, 2),
        ] {
            assert_eq!(chosen(now, 2, free), expected, "{now} threads, {free} CPUs are free");
        }
        assert_eq!(chosen(16, 16, 14.9), 15, "one of many");
        assert_eq!(chosen(8, 8, 12.0), 8, "half of the CPUs are second threads of a core");
        assert_eq!(chosen(3, 8, 6.0), 6, "all that were left at once");
        assert_eq!(chosen(2, 2, -3.0), 1, "more than there is");
    }

    #[test]
    fn this_machine_reports_what_is_needed() {
        let mut neighbours = Neighbours::new().unwrap();
        assert!(!neighbours.allowed.is_empty());
        assert_eq!(neighbours.threads(2, 2), 2, "not before the counters can have changed");
        neighbours.at -= INTERVAL;
        assert!((1..=2).contains(&neighbours.threads(2, 2)));
    }
}
