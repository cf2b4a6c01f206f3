//! Loops and their trip counts. The compiler records the trip count, or it follows from a counter
//! that starts at a constant, grows by a constant, and is compared with a constant. This module
//! simulates nothing.

use std::cell::Cell;

use super::module::{Module, Source};

/// A loop of a compiled program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loop {
    /// The instruction's name.
    pub name: String,
    /// The iterations each time the loop is reached, if known.
    pub trip_count: Option<u64>,
    /// How often one execution of the program reaches it.
    pub times: u64,
    /// The loop's body, as an index into the module's computations.
    pub body: usize,
    /// The line of the user's code, if known.
    pub source: Option<Source>,
}

impl Module {
    /// The loops, inner ones before outer ones.
    pub fn loops(&self) -> Vec<Loop> {
        let times = RunCounts::new(self);
        let mut loops = Vec::new();
        for (i, computation) in self.computations.iter().enumerate() {
            for (j, instruction) in computation.instructions.iter().enumerate() {
                if let ("while", &[body, _]) =
                    (instruction.opcode.as_str(), &instruction.called[..])
                {
                    loops.push(Loop {
                        name: instruction.name.clone(),
                        trip_count: self.trip_count(i, j),
                        times: times.runs(i),
                        body,
                        source: instruction.source.clone(),
                    });
                }
            }
        }
        loops
    }

    /// The trip count of the loop at an instruction of a computation.
    fn trip_count(&self, computation: usize, instruction: usize) -> Option<u64> {
        let instruction = &self.computations[computation].instructions[instruction];
        if let Some(count) = instruction.known_trip_count {
            return Some(count);
        }
        let &[body, condition] = &instruction.called[..] else { return None };
        let (left, right, direction) = self.comparison(condition)?;
        let body_root = self.computations[body].root;
        let steps = VisitBudget::default();
        // The initial value of a slot of the loop's state, and its increment per iteration.
        let slot = |i: usize| -> Option<(i64, i64)> {
            let next =
                self.value(&Frame { computation: body, caller: None }, body_root, Some(i), &steps)?;
            let step = (next.slot == Some(i)).then_some(next.plus)?;
            let frame = Frame { computation, caller: None };
            let start = self.value(&frame, *instruction.operands.first()?, Some(i), &steps)?;
            start.slot.is_none().then_some((start.plus, step))
        };
        let side = |value: Value| match value.slot {
            None => Some((value.plus, 0)),
            Some(i) => slot(i)
                .map(|(start, step)| (start.checked_add(value.plus).unwrap_or(i64::MAX), step)),
        };
        match (side(left)?, side(right)?) {
            ((start, step), (bound, 0)) => count(start, step, bound, &direction),
            ((bound, 0), (start, step)) => count(start, step, bound, mirrored(&direction)),
            _ => None,
        }
    }

    /// The two sides of a loop's condition.
    fn comparison(&self, condition: usize) -> Option<(Value, Value, String)> {
        let steps = VisitBudget::default();
        let outer = Frame { computation: condition, caller: None };
        let computation = &self.computations[condition];
        let root = computation.root();
        match (root.opcode.as_str(), &root.called[..]) {
            ("compare", _) => Some((
                self.value(&outer, *root.operands.first()?, None, &steps)?,
                self.value(&outer, *root.operands.get(1)?, None, &steps)?,
                root.direction.clone(),
            )),
            ("fusion", &[inner]) => {
                let frame = Frame { computation: inner, caller: Some((&outer, computation.root)) };
                let root = self.computations[inner].root();
                (root.opcode == "compare").then_some(())?;
                Some((
                    self.value(&frame, *root.operands.first()?, None, &steps)?,
                    self.value(&frame, *root.operands.get(1)?, None, &steps)?,
                    root.direction.clone(),
                ))
            }
            _ => None,
        }
    }

    /// The value of an instruction, or of one element of its tuple: a constant, or a slot of the
    /// outermost computation's state plus a constant.
    fn value(
        &self,
        frame: &Frame<'_>,
        instruction: usize,
        element: Option<usize>,
        steps: &VisitBudget,
    ) -> Option<Value> {
        steps.take()?;
        let i = &self.computations[frame.computation].instructions[instruction];
        let operand = |n: usize| i.operands.get(n).copied();
        let follow = |n: usize, element| self.value(frame, operand(n)?, element, steps);
        match i.opcode.as_str() {
            "constant" if element.is_none() => Some(Value { slot: None, plus: i.integer? }),
            "parameter" => match frame.caller {
                None => Some(Value { slot: Some(element?), plus: 0 }),
                Some((outer, call)) => {
                    let call = &self.computations[outer.computation].instructions[call];
                    self.value(outer, *call.operands.get(i.index)?, element, steps)
                }
            },
            "get-tuple-element" if element.is_none() => follow(0, Some(i.index)),
            "tuple" => self.value(frame, operand(element?)?, None, steps),
            "copy" | "bitcast" | "reshape" | "convert" | "copy-done" | "optimization-barrier" => {
                follow(0, element)
            }
            "copy-start" => follow(0, None),
            "add" | "subtract" if element.is_none() => {
                let left = follow(0, None)?;
                let right = follow(1, None)?;
                match (i.opcode.as_str(), left.slot, right.slot) {
                    ("add", slot, None) | ("add", None, slot) => {
                        Some(Value { slot, plus: left.plus.checked_add(right.plus)? })
                    }
                    ("subtract", slot, None) => {
                        Some(Value { slot, plus: left.plus.checked_sub(right.plus)? })
                    }
                    _ => None,
                }
            }
            "fusion" | "call" => {
                let &inner = i.called.first()?;
                let frame = Frame { computation: inner, caller: Some((frame, instruction)) };
                self.value(&frame, self.computations[inner].root, element, steps)
            }
            _ => None,
        }
    }
}

/// The number of instructions that may still be visited. A counter needs only a few; a longer
/// search is not worth it.
struct VisitBudget(Cell<u32>);

impl Default for VisitBudget {
    fn default() -> Self {
        Self(Cell::new(500))
    }
}

impl VisitBudget {
    fn take(&self) -> Option<()> {
        self.0.set(self.0.get().checked_sub(1)?);
        Some(())
    }
}

/// A computation, its caller, and the operands of the call.
struct Frame<'a> {
    computation: usize,
    caller: Option<(&'a Frame<'a>, usize)>,
}

/// A constant, or a slot of a loop's state plus a constant.
#[derive(Clone, Copy)]
struct Value {
    slot: Option<usize>,
    plus: i64,
}

/// The trip count of a loop whose counter starts at `start`, grows by `step`, and continues while
/// `direction` holds.
fn count(start: i64, step: i64, bound: i64, direction: &str) -> Option<u64> {
    let distance = bound.checked_sub(start)?;
    let runs = |distance: i64, step: i64| {
        if distance <= 0 {
            0
        } else {
            u64::try_from(distance).unwrap_or(0).div_ceil(u64::try_from(step).unwrap_or(1))
        }
    };
    match (direction, step.signum()) {
        ("LT", 1) => Some(runs(distance, step)),
        ("LE", 1) => Some(runs(distance.checked_add(1)?, step)),
        ("GT", -1) => Some(runs(distance.checked_neg()?, step.checked_neg()?)),
        ("GE", -1) => Some(runs(distance.checked_neg()?.checked_add(1)?, step.checked_neg()?)),
        ("NE", 1 | -1) if distance % step == 0 && distance / step >= 0 => {
            u64::try_from(distance / step).ok()
        }
        _ => None,
    }
}

fn mirrored(direction: &str) -> &str {
    match direction {
        "LT" => "GT",
        "GT" => "LT",
        "LE" => "GE",
        "GE" => "LE",
        other => other,
    }
}

/// How often each computation runs in one execution of the program.
pub(super) struct RunCounts {
    runs: Vec<u64>,
    /// Whether its instructions run one by one, so that their results are in memory. Those of a
    /// fusion do not.
    scheduled: Vec<bool>,
}

impl RunCounts {
    /// A loop of unknown length counts as one iteration. Each branch of a conditional counts. The
    /// computation that a reduction or a sort applies to each element is part of that instruction
    /// and does not count.
    pub(super) fn new(module: &Module) -> RunCounts {
        let mut runs = vec![0_u64; module.computations.len()];
        let mut scheduled = vec![false; module.computations.len()];
        (runs[module.entry], scheduled[module.entry]) = (1, true);
        // Callers come after the computations that they call.
        for (i, computation) in module.computations.iter().enumerate().rev() {
            if runs[i] == 0 {
                continue;
            }
            for (j, instruction) in computation.instructions.iter().enumerate() {
                let factor = match instruction.opcode.as_str() {
                    "while" => module.trip_count(i, j).unwrap_or(1),
                    // libtpu puts the work of cores other than the main one into custom calls.
                    "fusion" | "call" | "conditional" | "async-start" | "custom-call" => 1,
                    _ => continue,
                };
                let times = runs[i].saturating_mul(factor);
                for &called in &instruction.called {
                    runs[called] = runs[called].saturating_add(times);
                    scheduled[called] |= scheduled[i]
                        && !matches!(instruction.opcode.as_str(), "fusion" | "custom-call");
                }
            }
        }
        Self { runs, scheduled }
    }

    pub(super) fn runs(&self, computation: usize) -> u64 {
        self.runs[computation]
    }

    /// Whether it runs, and its instructions run one by one.
    pub(super) fn is_scheduled(&self, computation: usize) -> bool {
        self.scheduled[computation] && self.runs[computation] > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hlo::proto;

    fn instruction(id: i64, opcode: &str, operand_ids: &[i64]) -> proto::Instruction {
        proto::Instruction {
            name: format!("i{id}"),
            opcode: opcode.into(),
            id,
            operand_ids: operand_ids.to_vec(),
            ..Default::default()
        }
    }

    fn constant(id: i64, value: i32) -> proto::Instruction {
        let literal = proto::Literal { s32s: vec![value], ..Default::default() };
        proto::Instruction { literal: Some(literal), ..instruction(id, "constant", &[]) }
    }

    /// The trip count of a loop whose counter starts at 0 and is compared with 7. `next` computes
    /// the next value from instruction 11.
    fn counted(next: Vec<proto::Instruction>, root: i64) -> Option<u64> {
        let computation = |id, root_id, instructions| proto::Computation {
            name: format!("c{id}"),
            id,
            root_id,
            instructions,
        };
        let state = |id: i64| {
            [instruction(id, "parameter", &[]), instruction(id + 1, "get-tuple-element", &[id])]
        };
        let mut body = state(10).to_vec();
        body.extend(next);
        body.push(instruction(99, "tuple", &[root]));
        let compare = proto::Instruction {
            comparison_direction: "LT".into(),
            ..instruction(23, "compare", &[21, 22])
        };
        let condition = [state(20).to_vec(), vec![constant(22, 7), compare]].concat();
        let called = proto::Instruction {
            called_computation_ids: vec![1, 2],
            ..instruction(32, "while", &[31])
        };
        let entry = vec![constant(30, 0), instruction(31, "tuple", &[30]), called];
        let computations = vec![
            computation(1, 99, body),
            computation(2, 23, condition),
            computation(3, 32, entry),
        ];
        let module = proto::Module { computations, entry_computation_id: 3, ..Default::default() };
        let loops = Module::read(&module, 1).unwrap().loops();
        assert_eq!(loops.len(), 1);
        loops[0].trip_count
    }

    #[test]
    fn a_counter_is_followed_through_copies() {
        let by_two = vec![
            constant(12, 2),
            instruction(13, "copy", &[11]),
            instruction(14, "add", &[12, 13]),
        ];
        assert_eq!(counted(by_two, 14), Some(4));
        assert_eq!(counted(vec![instruction(12, "negate", &[11])], 12), None);
        assert_eq!(counted(Vec::new(), 11), None, "it does not move");
    }

    #[test]
    fn the_search_for_a_counter_is_limited() {
        // Each instruction doubles the one before: visiting both operands each time would take 2^60
        // steps.
        let doubled = (12..72).map(|id| instruction(id, "add", &[id - 1, id - 1])).collect();
        assert_eq!(counted(doubled, 71), None);
    }

    #[test]
    fn trip_counts_follow_from_counters() {
        assert_eq!(count(0, 1, 12, "LT"), Some(12));
        assert_eq!(count(0, 5, 12, "LT"), Some(3));
        assert_eq!(count(0, 1, 12, "LE"), Some(13));
        assert_eq!(count(11, -1, 0, "GE"), Some(12));
        assert_eq!(count(11, -2, 0, "GT"), Some(6));
        assert_eq!(count(0, 3, 12, "NE"), Some(4));
        assert_eq!(count(12, 1, 0, "LT"), Some(0));
        // The loop never ends, or its step is unknown.
        assert_eq!(
            (count(0, 5, 12, "NE"), count(0, -1, 12, "LT"), count(0, 0, 12, "LT")),
            (None, None, None)
        );
        assert_eq!((count(0, 1, 5, "EQ"), count(i64::MIN, 1, i64::MAX, "LT")), (None, None));
        assert_eq!((mirrored("LT"), mirrored("GE"), mirrored("NE")), ("GT", "LE", "NE"));
    }
}
