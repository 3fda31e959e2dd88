//! The drafts of one request: where they may come from, the one in the next decode call, and how often they were right.
//!
//! Owned by its task. The worker asks for a draft before a tick and reports its outcome after it. It must never look at the
//! rows of another owner.

use poncho_api::{DraftReport, Drafts};
use poncho_cache::Namespace;

use crate::backend::Token;
use crate::calls::tenant::Tenant;
use crate::draft::context::ContextDrafter;
use crate::draft::library::{Library, Scope};
use crate::draft::{Draft, Drafter};
use crate::schedule::drafts::Acceptance;

/// See the module.
pub(crate) struct RequestDrafts {
    sources: Drafts,
    scope: Scope,
    context: ContextDrafter,
    /// What was found for the next decode call.
    next: Option<Draft>,
    /// How many of its own drafts were right.
    pub(crate) acceptance: Acceptance,
    /// What drafts did so far.
    pub(crate) report: DraftReport,
}

impl RequestDrafts {
    /// Of a request that may be guessed from these sources.
    pub(crate) fn new(sources: Drafts, namespace: Namespace, tenant: Option<Tenant>) -> Self {
        Self {
            sources,
            scope: Scope { namespace, owner: tenant.map(|tenant| tenant.id) },
            context: ContextDrafter::default(),
            next: None,
            acceptance: Acceptance::NONE,
            report: DraftReport::default(),
        }
    }

    /// Looks for a draft of at most `most` tokens after `tokens`, which ends before the first token that `ends` a reply.
    pub(crate) fn look(
        &mut self,
        tokens: &[Token],
        library: Option<&Library>,
        most: usize,
        ends: impl Fn(Token) -> bool,
    ) -> Option<&Draft> {
        self.next = None;
        if self.sources == Drafts::Off || most == 0 {
            return None;
        }
        let own = self.context.draft(tokens, most);
        let library = library.filter(|_| self.sources != Drafts::Context);
        let stored = library.and_then(|library| library.draft(&self.scope, tokens, most));
        let mut draft = match own {
            Some(own) => own.or(stored),
            None => stored?,
        };
        if let Some(end) = draft.tokens.iter().position(|token| ends(*token)) {
            draft.tokens.truncate(end);
        }
        self.next = Some(draft).filter(|draft| !draft.tokens.is_empty());
        self.next.as_ref()
    }

    /// Keeps the first `rows` tokens of the draft.
    pub(crate) fn cut(&mut self, rows: usize) {
        if rows == 0 {
            self.next = None;
        } else if let Some(draft) = &mut self.next {
            draft.tokens.truncate(rows);
        }
    }

    /// The tokens in the next decode call.
    pub(crate) fn next(&self) -> &[Token] {
        self.next.as_ref().map_or(&[], |draft| &draft.tokens)
    }

    /// Drafts made the reply that much shorter; negative if it is longer.
    pub(crate) fn add_saved(&mut self, micros: i64) {
        self.report.saved_micros += micros;
    }

    /// A step is over: `accepted` of its draft tokens were drawn, and the one after them was not if `is_refused`. Returns the
    /// length of the match that the draft was found by.
    pub(crate) fn settle(&mut self, accepted: usize, is_refused: bool) -> Option<usize> {
        self.report.steps += 1;
        let draft = self.next.take()?;
        self.report.drafted += draft.tokens.len();
        self.report.accepted += accepted;
        self.acceptance.record(draft.matched, accepted, is_refused);
        Some(draft.matched)
    }
}
