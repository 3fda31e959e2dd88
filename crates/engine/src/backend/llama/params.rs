//! Context options in llama.cpp's own terms.
//!
//! Used by `context.rs` when a context is made. Plain values only; the one pointer among them is the abort flag, which
//! the context keeps alive.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use llama_cpp_sys_4 as sys;

use crate::backend::{
    ContextError, ContextInfo, ContextOptions, FlashAttention, KvLayout, KvType, Pooling, RopeScaling,
};

unsafe extern "C" fn on_abort_check(flag: *mut c_void) -> bool {
    // SAFETY: the pointer is the flag that the context holds and outlives it.
    unsafe { (*flag.cast::<AtomicBool>()).load(Ordering::Relaxed) }
}

/// The parameters of a context for requests of up to `n_ctx` tokens. The caller keeps `abort` alive as long as the
/// context.
pub(super) fn context_params(
    options: &ContextOptions,
    n_ctx: u32,
    abort: &Arc<AtomicBool>,
) -> Result<sys::llama_context_params, ContextError> {
    let too_large = |value: u32| ContextError::BadOption {
        option: "n_ctx",
        value: value.to_string(),
        reason: "n_ctx times n_seq_max does not fit into 31 bits",
    };
    // SAFETY: plain values.
    let mut params = unsafe { sys::llama_context_default_params() };
    let unified = options.kv == KvLayout::Unified;
    params.n_ctx = if unified {
        options.n_cells.unwrap_or(n_ctx).max(n_ctx)
    } else {
        n_ctx.checked_mul(options.n_seq_max).ok_or_else(|| too_large(n_ctx))?
    };
    if params.n_ctx > i32::MAX as u32 {
        return Err(too_large(n_ctx));
    }
    params.n_batch = options.n_batch;
    params.n_ubatch = if options.embeddings { options.n_batch } else { options.n_ubatch };
    params.n_seq_max = if unified { options.n_seq_max + 1 } else { options.n_seq_max };
    let threads = options.threads.unwrap_or_else(default_threads);
    params.n_threads = i32::try_from(threads).unwrap_or(i32::MAX);
    params.n_threads_batch = i32::try_from(options.threads_batch.unwrap_or(threads)).unwrap_or(i32::MAX);
    params.rope_scaling_type = match options.rope_scaling {
        RopeScaling::FromModel => sys::LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED,
        RopeScaling::None => sys::LLAMA_ROPE_SCALING_TYPE_NONE,
        RopeScaling::Linear => sys::LLAMA_ROPE_SCALING_TYPE_LINEAR,
        RopeScaling::Yarn => sys::LLAMA_ROPE_SCALING_TYPE_YARN,
        RopeScaling::LongRope => sys::LLAMA_ROPE_SCALING_TYPE_LONGROPE,
    };
    params.pooling_type = match options.pooling {
        Pooling::FromModel => sys::LLAMA_POOLING_TYPE_UNSPECIFIED,
        Pooling::None => sys::LLAMA_POOLING_TYPE_NONE,
        Pooling::Mean => sys::LLAMA_POOLING_TYPE_MEAN,
        Pooling::Cls => sys::LLAMA_POOLING_TYPE_CLS,
        Pooling::Last => sys::LLAMA_POOLING_TYPE_LAST,
        Pooling::Rank => sys::LLAMA_POOLING_TYPE_RANK,
    };
    params.flash_attn_type = match options.flash_attention {
        FlashAttention::On => sys::LLAMA_FLASH_ATTN_TYPE_ENABLED,
        FlashAttention::Off => sys::LLAMA_FLASH_ATTN_TYPE_DISABLED,
        FlashAttention::Auto => sys::LLAMA_FLASH_ATTN_TYPE_AUTO,
    };
    // 0 means "as the file says" for the frequencies, a negative value for the YaRN factors: llama.cpp's defaults.
    params.rope_freq_base = options.rope_freq_base.unwrap_or(params.rope_freq_base);
    params.rope_freq_scale = options.rope_freq_scale.unwrap_or(params.rope_freq_scale);
    params.yarn_ext_factor = options.yarn_ext_factor.unwrap_or(params.yarn_ext_factor);
    params.yarn_attn_factor = options.yarn_attn_factor.unwrap_or(params.yarn_attn_factor);
    params.yarn_beta_fast = options.yarn_beta_fast.unwrap_or(params.yarn_beta_fast);
    params.yarn_beta_slow = options.yarn_beta_slow.unwrap_or(params.yarn_beta_slow);
    params.yarn_orig_ctx = options.yarn_orig_ctx.unwrap_or(params.yarn_orig_ctx);
    params.type_k = ggml_type(options.type_k);
    params.type_v = ggml_type(options.type_v);
    params.offload_kqv = options.offload_kqv;
    params.embeddings = options.embeddings;
    params.swa_full = options.swa_full;
    params.kv_unified = unified;
    params.abort_callback = Some(on_abort_check);
    params.abort_callback_data = Arc::as_ptr(abort).cast_mut().cast();
    Ok(params)
}

/// The number of cells that llama.cpp gives windowed layers (`llama-kv-cache-iswa.cpp` of the pinned version).
pub(super) fn window_ring(window: u32, sequences: u32, info: &ContextInfo, full: bool) -> Option<u32> {
    let base = match info.kv {
        KvLayout::Unified => info.n_cells,
        KvLayout::Split => info.n_cells / info.n_seq_max,
    };
    let ring = if full { base } else { window.saturating_mul(sequences).saturating_add(info.n_ubatch).min(base) };
    if window == 0 { None } else { ring.checked_next_multiple_of(256) }
}

fn ggml_type(kind: KvType) -> sys::ggml_type {
    match kind {
        KvType::F32 => sys::GGML_TYPE_F32,
        KvType::F16 => sys::GGML_TYPE_F16,
        KvType::Bf16 => sys::GGML_TYPE_BF16,
        KvType::Q8_0 => sys::GGML_TYPE_Q8_0,
        KvType::Q4_0 => sys::GGML_TYPE_Q4_0,
        KvType::Q4_1 => sys::GGML_TYPE_Q4_1,
        KvType::Q5_0 => sys::GGML_TYPE_Q5_0,
        KvType::Q5_1 => sys::GGML_TYPE_Q5_1,
        KvType::Iq4Nl => sys::GGML_TYPE_IQ4_NL,
    }
}

/// The physical cores: two threads of one core slow the matrix kernels down.
fn default_threads() -> u32 {
    let logical = std::thread::available_parallelism().map_or(4, std::num::NonZero::get);
    let smt = std::fs::read_to_string("/sys/devices/system/cpu/smt/active").is_ok_and(|text| text.trim() == "1");
    // A small virtual machine often shows its few cores as siblings; there every one of them counts.
    let threads = if smt && logical > 4 { logical.div_ceil(2) } else { logical };
    u32::try_from(threads).unwrap_or(u32::MAX)
}
