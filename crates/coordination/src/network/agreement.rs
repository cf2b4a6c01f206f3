//! Compares the facts of all processes and says which processes differ, and in what.

use std::collections::BTreeMap;

/// A fact on which the processes do not agree.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Disagreement {
    /// The processes in the minority, or all processes concerned if no value has a majority.
    pub(crate) processes: Vec<u32>,
    pub(crate) message: String,
}

type Facts = BTreeMap<String, String>;

/// Compares the facts of all processes. `name` gives a process's name for messages.
pub(crate) fn compare(
    facts: &BTreeMap<u32, Facts>,
    name: impl Fn(u32) -> String,
) -> Result<(), Disagreement> {
    let mut keys: Vec<&str> = facts.values().flat_map(|f| f.keys().map(String::as_str)).collect();
    keys.sort_unstable();
    keys.dedup();
    let mut minority = Vec::new();
    let mut lines = Vec::new();
    for key in keys {
        let mut holders: BTreeMap<Option<&str>, Vec<u32>> = BTreeMap::new();
        for (&index, facts) in facts {
            holders.entry(facts.get(key).map(String::as_str)).or_default().push(index);
        }
        if holders.len() < 2 {
            continue;
        }
        let most = holders.values().map(Vec::len).max().unwrap_or_default();
        let mut largest = holders.iter().filter(|(_, who)| who.len() == most);
        // If two values are equally common, neither is in the minority.
        let common = largest.next().filter(|_| largest.next().is_none());
        for (value, who) in holders.iter().filter(|&group| Some(group) != common) {
            minority.extend(who);
            let instead = match common {
                Some((value, who)) => {
                    format!(", the other {} {} {}", who.len(), has(who), show(*value))
                }
                None => String::new(),
            };
            lines.push(format!(
                "`{key}`: {} {} {}{instead}",
                list(who, &name),
                has(who),
                show(*value)
            ));
        }
    }
    minority.sort_unstable();
    minority.dedup();
    if lines.is_empty() {
        return Ok(());
    }
    Err(Disagreement { processes: minority, message: lines.join("; ") })
}

/// The names of the processes. Of a long list, it has only the first few.
pub(crate) fn list(processes: &[u32], name: impl Fn(u32) -> String) -> String {
    const MAX_SHOWN: usize = 8;
    let names: Vec<String> = processes.iter().take(MAX_SHOWN).map(|&i| name(i)).collect();
    match processes.len().saturating_sub(MAX_SHOWN) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

fn has(who: &[u32]) -> &'static str {
    if who.len() == 1 { "has" } else { "have" }
}

fn show(value: Option<&str>) -> String {
    const MAX_SHOWN: usize = 200;
    match value {
        None => "nothing".to_owned(),
        Some(value) if value.chars().count() > MAX_SHOWN => {
            format!("{}…", value.chars().take(MAX_SHOWN).collect::<String>())
        }
        Some(value) => value.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn check(programs: &[&[(&str, &str)]], minority: &[u32], message: Expect) {
        let facts = (0..).zip(
            programs.iter().map(|f| f.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect()),
        );
        match compare(&facts.collect(), |i| format!("process {i} (host-{i})")) {
            Ok(()) => {
                assert!(minority.is_empty());
                message.assert_eq("");
            }
            Err(disagreement) => {
                assert_eq!(disagreement.processes, minority);
                message.assert_eq(&disagreement.message);
            }
        }
    }

    #[test]
    fn equal_facts_agree() {
        let same: &[(&str, &str)] = &[("program", "a"), ("mesh", "8")];
        check(&[same; 3], &[], expect![""]);
        check(&[&[]], &[], expect![""]);
    }

    #[test]
    fn the_minority_is_named_with_the_majoritys_value() {
        check(
            &[&[("program", "a")], &[("program", "a")], &[("program", "b")], &[("program", "a")]],
            &[2],
            expect!["`program`: process 2 (host-2) has b, the other 3 have a"],
        );
    }

    #[test]
    fn each_fact_names_its_own_minority() {
        check(
            &[
                &[("mesh", "8"), ("program", "a")],
                &[("mesh", "4"), ("program", "a")],
                &[("mesh", "8"), ("program", "b")],
                &[("mesh", "8"), ("program", "c")],
                &[("mesh", "8"), ("program", "a")],
            ],
            &[1, 2, 3],
            expect![
                "`mesh`: process 1 (host-1) has 4, the other 4 have 8; `program`: process 2 (host-2) has b, the other 3 have a; `program`: process 3 (host-3) has c, the other 3 have a"
            ],
        );
    }

    #[test]
    fn without_a_majority_all_are_named() {
        check(
            &[
                &[("data", "60000")],
                &[("data", "50000")],
                &[("data", "60000")],
                &[("data", "50000")],
            ],
            &[0, 1, 2, 3],
            expect![
                "`data`: process 1 (host-1), process 3 (host-3) have 50000; `data`: process 0 (host-0), process 2 (host-2) have 60000"
            ],
        );
        check(
            &[&[("data", "60000")], &[]],
            &[0, 1],
            expect!["`data`: process 1 (host-1) has nothing; `data`: process 0 (host-0) has 60000"],
        );
    }

    #[test]
    fn long_values_and_many_names_are_cut() {
        let long = "x".repeat(1000);
        let mut facts: Vec<Vec<(&str, &str)>> = vec![vec![("program", &long)]; 12];
        facts.extend(vec![vec![("program", "y")]; 13]);
        let all = (0..).zip(
            facts.iter().map(|f| f.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect()),
        );
        let disagreement = compare(&all.collect(), |i| i.to_string()).unwrap_err();
        let cut = "x".repeat(200);
        assert_eq!(
            disagreement.message,
            format!(
                "`program`: 0, 1, 2, 3, 4, 5, 6, 7 and 4 more have {cut}…, the other 13 have y"
            )
        );
        assert_eq!(disagreement.processes, (0..12).collect::<Vec<_>>());
    }
}
