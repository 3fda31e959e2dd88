//! What comes out of a context: logits that follow adapters and wanted replies, and embeddings.

use super::*;

#[test]
fn adapters_change_the_answer_and_belong_to_a_model() {
    let model = StubBackend::new(MemoryKind::Attention).load_model(&ModelOptions::new("a model")).unwrap();
    let mut context = model.new_context(&options(), Arc::default()).unwrap();
    let plain = cold(MemoryKind::Attention, &[1, 2]);
    let adapter = |name: &str, scale| AdapterUse { adapter: model.load_adapter(name.as_ref()).unwrap(), scale };
    let mut with = |adapters: &[AdapterUse]| {
        context.set_adapters(adapters).unwrap();
        context.clear();
        read(context.as_mut(), 0, 0, &[1, 2])
    };
    let one = with(&[adapter("one", 1.0)]);
    assert_ne!(one, plain);
    assert_eq!(with(&[adapter("one", 1.0)]), one, "loaded again it is the same");
    assert_ne!(with(&[adapter("one", 0.5)]), one);
    assert_ne!(with(&[adapter("two", 1.0)]), one);
    let both = with(&[adapter("one", 1.0), adapter("two", 1.0)]);
    assert_eq!(with(&[adapter("two", 1.0), adapter("one", 1.0)]), both);
    assert_eq!(with(&[adapter("one", 0.0)]), plain);
    assert_eq!(with(&[]), plain);
    let other = StubBackend::new(MemoryKind::Attention).load_model(&ModelOptions::new("a model")).unwrap();
    let stranger = AdapterUse { adapter: other.load_adapter("one".as_ref()).unwrap(), scale: 1.0 };
    assert!(matches!(context.set_adapters(&[stranger]), Err(AdapterError::OtherModel)));
}

#[test]
fn embeddings_come_instead_of_logits() {
    let backend = StubBackend::new(MemoryKind::None);
    let with = |pooling| ContextOptions { embeddings: true, pooling, ..options() };
    let mut rows = context_of(&backend, &with(Pooling::None));
    let mut texts = batch(0, 0, &[1, 2]);
    texts.rows.extend(batch(1, 0, &[1, 3]).rows);
    for _ in 0..2 {
        assert_eq!(rows.decode(&texts), DecodeOutcome::Done, "nothing is remembered");
    }
    assert_eq!((rows.logits(0), rows.sequence_embedding(0)), (None, None));
    let [a, b, c] = [0, 1, 2].map(|row| rows.row_embedding(row).unwrap().to_vec());
    assert!(a == c && a != b && a.len() == 16);
    let mut mean = context_of(&backend, &with(Pooling::FromModel));
    assert_eq!(mean.decode(&texts), DecodeOutcome::Done);
    let pooled = mean.sequence_embedding(0).unwrap();
    assert!(pooled.iter().zip(a.iter().zip(&b)).all(|(mean, (a, b))| (mean - (a + b) / 2.0).abs() < 1e-6));
    assert_ne!(Some(pooled), mean.sequence_embedding(1));
    assert_eq!((mean.row_embedding(0), mean.sequence_embedding(2)), (None, None));
}

#[test]
fn a_wanted_reply_is_given_to_its_own_prompt_only() {
    for kind in KINDS {
        let prompt = vocab::tokens("ask");
        let reply = vocab::tokens("<think>hm</think>yes</s>");
        let backend = StubBackend::new(kind).with_reply(&prompt, &reply);
        let mut context = context_of(&backend, &options());
        let mut logits = read(context.as_mut(), 0, 0, &prompt);
        for (pos, &token) in (3..).zip(&reply) {
            assert_eq!(crate::reply::sampler::argmax(&logits), Ok(token));
            logits = read(context.as_mut(), 0, pos, &[token]);
        }
        assert_eq!(read(context.as_mut(), 1, 0, &vocab::tokens("tell")), cold(kind, &vocab::tokens("tell")));
    }
}

#[test]
fn replies_are_text_and_end_by_themselves() {
    let mut context =
        context_of(&StubBackend::new(MemoryKind::Attention), &ContextOptions { n_ctx: 4096, ..options() });
    let mut logits = read(context.as_mut(), 0, 0, &vocab::tokens("Tell me something"));
    let (mut bytes, mut ends) = (Vec::new(), 0);
    for pos in 17..2017 {
        let token = crate::reply::sampler::argmax(&logits).unwrap();
        ends += u32::from(token == vocab::EOS);
        vocab::token_bytes(token, crate::backend::SpecialText::Hide, &mut bytes);
        logits = read(context.as_mut(), 0, pos, &[token]);
    }
    bytes.truncate(bytes.len() - 1);
    let text = String::from_utf8_lossy(&bytes);
    assert!(text.chars().any(|char| char.len_utf8() == 2) && text.contains(' '), "{text}");
    assert!((15..60).contains(&ends), "{ends}");
}
