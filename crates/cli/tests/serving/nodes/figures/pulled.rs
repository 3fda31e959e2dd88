//! Rows that travel between nodes: how much faster than computing.

use poncho_testkit::default_model_path;

use super::fleet::{Fleet, Recipe};
use super::measuring::{complete, milliseconds, percentile};
use super::{is_whole, quick_model, text};
use crate::serving::stopping::until;

#[test]
fn a_pulled_prompt_is_far_faster_than_a_computed_one() {
    // A small model computes faster than it pulls; the reply must be the same either way.
    let (model, letters, rounds) =
        if is_whole() { (default_model_path(), 7_900, 6) } else { (quick_model(), 2_000, 2) };
    let flags = ["--ctx-size", "4096", "--parallel", "1"];
    let mut fleet = Fleet::start(2, Recipe::new(model, &flags));
    let fronts = [fleet.direct(0), fleet.direct(1)];
    for served in &fronts {
        // Speeds are measured before they count.
        complete(served.address, &text(90, 900), 4);
    }
    let (mut cold, mut pulled, mut tokens) = (Vec::new(), Vec::new(), 0);
    for round in 0..rounds {
        let (from, to) = (&fronts[round % 2], &fronts[(round + 1) % 2]);
        let prompt = text(round, letters);
        let first = complete(from.address, &prompt, 1);
        assert!(first.computed() > 200, "{}", first.usage);
        tokens = first.usage["prompt_tokens"].as_u64().unwrap();
        fleet.settle();
        until("the rows of the other node are known", || {
            let cache: serde_json::Value = serde_json::from_str(&to.ask("GET", "/api/cache").1).unwrap();
            cache["peers"]["on"] == true
        });
        let second = complete(to.address, &prompt, 1);
        assert_eq!(first.text, second.text);
        println!(
            "5. round {round}: cold {:.0} ms, from {} {:.1} ms",
            milliseconds(first.first),
            second.facts["tier"],
            milliseconds(second.first)
        );
        if second.facts["tier"] == "peer" {
            cold.push(milliseconds(first.first));
            pulled.push(milliseconds(second.first));
        }
    }
    if !is_whole() {
        return;
    }
    let (cold, peer) = (percentile(&cold, 50), percentile(&pulled, 50));
    println!("5. first token of {tokens} tokens: cold {cold:.0} ms, pulled {peer:.1} ms, {:.0} : 1", cold / peer);
}
