//! The settings of the pressure watcher, their check, and the decision made from them.
//!
//! Filled from the configuration, checked by `PressureWatcher::start`. Pure: no I/O, no clock, no state.

use crate::kinds::Tier;
use crate::pressure::sources::{PressureSample, PressureSourceKind};

/// The settings of the watcher.
#[derive(Debug, Clone, PartialEq)]
pub struct PressureConfig {
    /// Whether the watcher samples on its own.
    pub enabled: bool,
    /// Time between two samples.
    pub interval_ms: u64,
    /// Share of the total at which eviction starts.
    pub high_watermark: f64,
    /// Share of the total that eviction aims at.
    pub low_watermark: f64,
    /// The tiers that may be evicted from. Files on a disk take no memory.
    pub evict_tiers: Vec<Tier>,
    /// The least that one eviction asks for.
    pub min_evict_bytes: u64,
    /// What is sampled at first.
    pub source: PressureSourceKind,
}

impl Default for PressureConfig {
    fn default() -> Self {
        Self {
            enabled: false,
            interval_ms: 5000,
            high_watermark: 0.85,
            low_watermark: 0.75,
            evict_tiers: vec![Tier::Ram, Tier::RamFile],
            min_evict_bytes: 1 << 20,
            source: PressureSourceKind::Noop,
        }
    }
}

/// Invalid settings, or a thread that cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum PressureConfigError {
    /// Sampling without a pause.
    #[error("interval_ms is 0; set it to the time between two samples, such as 5000")]
    IntervalZero,
    /// Not a share of the total.
    #[error("high_watermark ({high_watermark}) is not above 0 and at most 1; set it to a share such as 0.85")]
    HighOutOfRange {
        /// The configured value.
        high_watermark: f64,
    },
    /// Eviction would never or always be done.
    #[error(
        "low_watermark ({low_watermark}) is not between 0 and high_watermark ({high_watermark}); lower it, to 0.75 or so"
    )]
    LowOutOfRange {
        /// The configured value.
        low_watermark: f64,
        /// The configured value.
        high_watermark: f64,
    },
    /// Nothing to evict from.
    #[error("evict_tiers is empty; name ram, ram_file or both, or switch the pressure watcher off")]
    NoTiers,
    /// The same tier twice.
    #[error("evict_tiers names {tier} twice; name each tier once")]
    TierTwice {
        /// The tier.
        tier: Tier,
    },
    /// The thread could not be started.
    #[error("cannot start the pressure watcher's thread; check the limits on processes")]
    Thread(#[source] std::io::Error),
}

impl PressureConfig {
    /// Checks the settings; the error names the wrong one.
    ///
    /// # Errors
    /// The first invalid setting.
    pub fn validate(&self) -> Result<(), PressureConfigError> {
        let (high_watermark, low_watermark) = (self.high_watermark, self.low_watermark);
        if self.interval_ms == 0 {
            return Err(PressureConfigError::IntervalZero);
        }
        // Written so that NaN fails too.
        if !(high_watermark > 0.0 && high_watermark <= 1.0) {
            return Err(PressureConfigError::HighOutOfRange { high_watermark });
        }
        if !(low_watermark > 0.0 && low_watermark < high_watermark) {
            return Err(PressureConfigError::LowOutOfRange { low_watermark, high_watermark });
        }
        if self.evict_tiers.is_empty() {
            return Err(PressureConfigError::NoTiers);
        }
        for tier in Tier::ALL {
            if self.evict_tiers.iter().filter(|named| **named == tier).count() > 1 {
                return Err(PressureConfigError::TierTwice { tier });
            }
        }
        Ok(())
    }

    /// How much to evict for a sample: nothing below the high watermark; at or above it what is used beyond the low
    /// one, but at least `min_evict_bytes`.
    #[must_use]
    pub fn bytes_to_evict(&self, sample: PressureSample) -> Option<u64> {
        let (used, total) = (sample.used as f64, sample.total as f64);
        if sample.total == 0 || used < self.high_watermark * total {
            return None;
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a u64; the cast saturates, and an absurd share leads to an absurd target only"
        )]
        let target = (self.low_watermark * total) as u64;
        Some(sample.used.saturating_sub(target).max(self.min_evict_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn eviction_starts_at_the_high_watermark_and_aims_at_the_low_one() {
        let config = PressureConfig::default();
        let evict = |used: u64, total: u64| config.bytes_to_evict(PressureSample { used, total });
        assert_eq!(evict(84 * MIB, 100 * MIB), None);
        assert_eq!(evict(85 * MIB, 100 * MIB), Some(10 * MIB));
        assert_eq!(evict(120 * MIB, 100 * MIB), Some(45 * MIB), "more than full");
        assert_eq!(evict(9, 10), Some(MIB), "at least min_evict_bytes");
        assert_eq!(evict(0, 0), None, "a source without a total watches nothing");
        assert_eq!(evict(u64::MAX, u64::MAX).map(|bytes| bytes >> 60), Some(3));
    }

    #[test]
    fn senseless_settings_are_refused_by_name() {
        let refusal = |change: fn(&mut PressureConfig)| {
            let mut config = PressureConfig::default();
            change(&mut config);
            config.validate().unwrap_err()
        };
        assert!(PressureConfig::default().validate().is_ok());
        assert!(matches!(refusal(|config| config.interval_ms = 0), PressureConfigError::IntervalZero));
        for high in [0.0, 1.01, f64::NAN, -1.0] {
            let config = PressureConfig { high_watermark: high, ..PressureConfig::default() };
            assert!(matches!(config.validate(), Err(PressureConfigError::HighOutOfRange { .. })), "{high}");
        }
        for low in [0.0, 0.85, f64::NAN, 0.9] {
            let config = PressureConfig { low_watermark: low, ..PressureConfig::default() };
            assert!(matches!(config.validate(), Err(PressureConfigError::LowOutOfRange { .. })), "{low}");
        }
        assert!(matches!(refusal(|config| config.evict_tiers.clear()), PressureConfigError::NoTiers));
        let twice = refusal(|config| config.evict_tiers.push(Tier::Ram));
        assert!(matches!(twice, PressureConfigError::TierTwice { tier: Tier::Ram }));
    }
}
