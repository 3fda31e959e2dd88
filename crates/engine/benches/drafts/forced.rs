//! llama.cpp with replies that are known beforehand: every step is computed, and the token that is drawn is the recorded one.
//!
//! Used by the benchmark of drafts, so that guesses are judged on what real models wrote while the times are those of the
//! model at hand. The logits of a row are replaced by ones with a single peak: the token that the exchange has next.

use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use poncho_engine::backend::double::ModelDouble;
use poncho_engine::backend::llama::LlamaBackend;
use poncho_engine::backend::{
    AdapterError, AdapterUse, Backend, Batch, ComputingDevices, Context, ContextError, ContextInfo, ContextOptions,
    DecodeOutcome, HostBuffer, LoadError, Model, ModelOptions, SegmentJoiner, SeqId, StateError, StatePart,
    StoredSegment, Token,
};

use crate::traces::Exchange;

/// Rows with logits in one batch of replies: draft rows of all requests, and a row for each request.
const ROWS: usize = 128;
/// All logits but the peak.
const LOW: f32 = -10.0;

/// The exchanges that are played now, with the sequence of each as soon as it is known.
type Playing = Arc<Mutex<Vec<(Arc<[Token]>, usize, Option<SeqId>)>>>;

/// See the module.
#[derive(Clone, Default)]
pub(crate) struct ForcedBackend {
    playing: Playing,
}

impl ForcedBackend {
    /// From now on these exchanges are played.
    pub(crate) fn play(&self, exchanges: &[&Exchange]) {
        let playing = exchanges.iter().map(|exchange| (exchange.whole().into(), exchange.prompt.len(), None));
        *self.playing.lock().unwrap() = playing.collect();
    }
}

impl Backend for ForcedBackend {
    fn name(&self) -> &'static str {
        LlamaBackend.name()
    }

    fn build(&self) -> String {
        LlamaBackend.build()
    }

    fn load_model(&self, options: &ModelOptions) -> Result<Arc<dyn Model>, LoadError> {
        Ok(Arc::new(ForcedModel { model: LlamaBackend.load_model(options)?, playing: Arc::clone(&self.playing) }))
    }

    fn computing_devices(&self, options: &ModelOptions) -> Option<ComputingDevices> {
        LlamaBackend.computing_devices(options)
    }

    fn host_buffer(&self, len: usize) -> HostBuffer {
        LlamaBackend.host_buffer(len)
    }
}

struct ForcedModel {
    model: Arc<dyn Model>,
    playing: Playing,
}

impl ModelDouble for ForcedModel {
    fn inner(&self) -> &dyn Model {
        &*self.model
    }

    fn context(&self, options: &ContextOptions, abort: Arc<AtomicBool>) -> Result<Box<dyn Context>, ContextError> {
        let context = self.model.new_context(options, abort)?;
        let width = usize::try_from(self.model.info().n_vocab).unwrap();
        Ok(Box::new(ForcedContext {
            context,
            playing: Arc::clone(&self.playing),
            width,
            places: Vec::new(),
            // Written at once: pages that were never written are faster to read, and a source that happens to have more of
            // them would look faster.
            logits: vec![LOW; ROWS * width],
            peaks: vec![0; ROWS],
        }))
    }
}

struct ForcedContext {
    context: Box<dyn Context>,
    playing: Playing,
    width: usize,
    /// For each row of the last batch the place of its logits.
    places: Vec<Option<usize>>,
    /// The logits of all places, one after the other.
    logits: Vec<f32>,
    /// The token with the highest logit, by place.
    peaks: Vec<usize>,
}

impl ForcedContext {
    /// The token that follows a row.
    fn next(&self, seq: SeqId, pos: u32, token: Token) -> Option<Token> {
        let place = usize::try_from(pos).unwrap();
        let mut playing = self.playing.lock().unwrap();
        let known = playing.iter().position(|(_, _, taken)| *taken == Some(seq));
        let found = known.or_else(|| {
            // The first row is the last token of the prompt, or the one after it if the logits of the prompt are stored.
            playing.iter().position(|(whole, prompt, taken)| {
                let is_first = (place..=place + 1).contains(prompt);
                taken.is_none() && is_first && whole.get(place) == Some(&token)
            })
        })?;
        playing[found].2 = Some(seq);
        playing[found].0.get(place + 1).copied()
    }
}

impl Context for ForcedContext {
    fn info(&self) -> &ContextInfo {
        self.context.info()
    }

    fn decode(&mut self, batch: &Batch) -> DecodeOutcome {
        let outcome = self.context.decode(batch);
        self.places.clear();
        self.places.resize(batch.rows.len(), None);
        let wanted = batch.rows.iter().enumerate().filter(|(_, row)| row.want_logits);
        for (place, (number, row)) in wanted.enumerate() {
            if place == self.peaks.len() {
                self.peaks.push(0);
                self.logits.resize(self.peaks.len() * self.width, LOW);
            }
            let token = self.next(row.seq, row.pos, row.token).unwrap_or(0);
            let logits = &mut self.logits[place * self.width..][..self.width];
            logits[self.peaks[place]] = LOW;
            self.peaks[place] = usize::try_from(token).unwrap();
            logits[self.peaks[place]] = -LOW;
            self.places[number] = Some(place);
        }
        outcome
    }

    fn logits(&self, row: usize) -> Option<&[f32]> {
        // Taken from the device as for any other reply.
        self.context.logits(row)?;
        let place = (*self.places.get(row)?)?;
        self.logits.get(place * self.width..)?.get(..self.width)
    }

    fn row_embedding(&self, row: usize) -> Option<&[f32]> {
        self.context.row_embedding(row)
    }

    fn sequence_embedding(&self, seq: SeqId) -> Option<&[f32]> {
        self.context.sequence_embedding(seq)
    }

    fn remove(&mut self, seq: SeqId, range: Range<u32>) -> bool {
        self.context.remove(seq, range)
    }

    fn copy(&mut self, from: SeqId, to: SeqId) -> bool {
        self.context.copy(from, to)
    }

    fn pos_min(&self, seq: SeqId) -> Option<u32> {
        self.context.pos_min(seq)
    }

    fn pos_max(&self, seq: SeqId) -> Option<u32> {
        self.context.pos_max(seq)
    }

    fn clear(&mut self) {
        self.context.clear();
    }

    fn set_adapters(&mut self, adapters: &[AdapterUse]) -> Result<(), AdapterError> {
        self.context.set_adapters(adapters)
    }

    fn state_size(&mut self, seq: SeqId, part: StatePart) -> Result<usize, StateError> {
        self.context.state_size(seq, part)
    }

    fn state_read(&mut self, seq: SeqId, part: StatePart, out: &mut [u8]) -> Result<usize, StateError> {
        self.context.state_read(seq, part, out)
    }

    fn state_write(&mut self, seq: SeqId, part: StatePart, bytes: &[u8]) -> Result<(), StateError> {
        self.context.state_write(seq, part, bytes)
    }

    fn pack_size(&mut self, seq: SeqId, range: Range<u32>) -> Result<usize, StateError> {
        self.context.pack_size(seq, range)
    }

    fn pack_range(&mut self, seq: SeqId, range: Range<u32>, out: &mut [u8]) -> Result<usize, StateError> {
        self.context.pack_range(seq, range, out)
    }

    fn restore_begin(&mut self, seq: SeqId, n_tokens: u32, partial: Option<&[u8]>) -> Result<(), StateError> {
        self.context.restore_begin(seq, n_tokens, partial)
    }

    fn restore_segments(&mut self, segments: &[StoredSegment<'_>]) -> Result<(), StateError> {
        self.context.restore_segments(segments)
    }

    fn restore_finish(&mut self) -> Result<(), StateError> {
        self.context.restore_finish()
    }

    fn joiner(&self) -> Option<Arc<dyn SegmentJoiner>> {
        self.context.joiner()
    }

    fn synchronize(&mut self) {
        self.context.synchronize();
    }
}
