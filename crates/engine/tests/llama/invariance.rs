//! What changes a bit of the logits on this machine, and what does not: the table of docs/exactness.md, measured.
//!
//! Some rows depend on the kernels that a machine takes for a model's weights; they are printed (`--nocapture`) and not
//! judged. The rows that the promises stand on are asserted.

mod table;

use poncho_engine::backend::llama::LlamaBackend;
use poncho_engine::backend::{Backend, FlashAttention, ModelOptions};
use poncho_testkit::{ModelKind, default_model_path, model_path};

use table::table;

#[test]
fn what_the_promises_stand_on_holds_on_this_machine() {
    // The default model is slow on one thread, so its prompt is short.
    let files = [("generated", model_path(ModelKind::Attention), 150), ("SmolLM2", default_model_path(), 40)];
    for (name, path, length) in files {
        let model = LlamaBackend.load_model(&ModelOptions::new(path)).unwrap();
        for flash in [FlashAttention::On, FlashAttention::Off] {
            println!("{name}, flash attention {flash:?}");
            for line in table(&model, flash, length) {
                println!("  {:60} {}", line.what, if line.same { "same" } else { "differs" });
                assert!(line.same || !line.promised, "{name} {flash:?}: {}", line.what);
            }
        }
    }
}
