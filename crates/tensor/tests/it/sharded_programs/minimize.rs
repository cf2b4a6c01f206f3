//! Makes a faulty program smaller, as long as it has the same kind of fault.

use super::operations::{Body, Op};
use super::program::{Input, InputKind, Placement, Program, Weights};

/// The smallest program with this fault that single changes reach.
pub(super) fn minimize(program: &Program, mut is_faulty: impl FnMut(&Program) -> bool) -> Program {
    let mut smallest = program.clone();
    loop {
        let before = size(&smallest);
        for smaller in smaller(&smallest) {
            if size(&smaller) < before && is_faulty(&smaller) {
                smallest = smaller;
                break;
            }
        }
        if size(&smallest) == before {
            return smallest;
        }
    }
}

/// What is made smaller, the most important first.
fn size(program: &Program) -> (usize, usize, usize, usize, usize) {
    let inner = |op: &Op| body(op).map_or(0, |body| body.steps.len() + 1);
    let steps: usize = program.steps.iter().map(|step| 1 + inner(&step.op)).sum();
    let placed = |placement: &Placement| match placement {
        Placement::Anywhere => 0,
        Placement::Split(split) => 1 + split.iter().map(Vec::len).sum::<usize>(),
        Placement::Gathered(split) => 2 + split.iter().map(Vec::len).sum::<usize>(),
    };
    let inner_placed =
        |op: &Op| body(op).map_or(0, |b| b.steps.iter().map(|s| placed(&s.placement)).sum());
    let shardings = program.inputs.iter().flat_map(|i| i.split.iter().map(Vec::len)).sum::<usize>()
        + program
            .steps
            .iter()
            .map(|step| placed(&step.placement) + inner_placed(&step.op))
            .sum::<usize>()
        + usize::from(program.splits_gradients);
    let constants = program.inputs.iter().filter(|input| !input.kind.is_parameter()).count();
    let weights = program.terms.iter().filter(|term| term.1 != Weights::Ones).count();
    (
        steps,
        program.terms.len() + program.returned.len(),
        program.inputs.len(),
        shardings,
        constants + weights,
    )
}

fn body(op: &Op) -> Option<&Body> {
    match op {
        Op::Checkpoint(body) | Op::Call(body) | Op::Cond(body) | Op::Scan { body, .. } => {
            Some(body)
        }
        _ => None,
    }
}

fn body_mut(op: &mut Op) -> Option<&mut Body> {
    match op {
        Op::Checkpoint(body) | Op::Call(body) | Op::Cond(body) | Op::Scan { body, .. } => {
            Some(body)
        }
        _ => None,
    }
}

/// The shape of each value.
fn shapes(program: &Program) -> Vec<Vec<usize>> {
    let mut values: Vec<_> = (0..program.inputs.len()).map(|id| program.input(id)).collect();
    for step in &program.steps {
        let y = step.record(&values);
        values.push(y);
    }
    values.iter().map(|y| y.shape().to_vec()).collect()
}

/// Candidates, those that remove most first.
fn smaller(program: &Program) -> Vec<Program> {
    let inputs = program.inputs.len();
    let shapes = shapes(program);
    let mut candidates = Vec::new();
    let mut add = |candidate: Program| candidates.push(without_unused(candidate));
    // Only one value in the loss, or none.
    for i in 0..program.terms.len() {
        add(Program { terms: vec![program.terms[i]], returned: Vec::new(), ..program.clone() });
        let mut terms = program.terms.clone();
        terms.remove(i);
        add(Program { terms, ..program.clone() });
    }
    for i in 0..program.returned.len() {
        let returned = vec![program.returned[i]];
        add(Program { terms: Vec::new(), returned, ..program.clone() });
        let mut returned = program.returned.clone();
        returned.remove(i);
        add(Program { returned, ..program.clone() });
    }
    // An earlier value in the loss instead of a later one.
    for id in inputs..shapes.len() {
        add(Program {
            terms: vec![(id, Weights::Computed)],
            returned: Vec::new(),
            ..program.clone()
        });
        add(Program { terms: Vec::new(), returned: vec![id], ..program.clone() });
    }
    // A step replaced by an input of its shape, or by an operand of its shape.
    for i in (0..program.steps.len()).rev() {
        let id = inputs + i;
        let split = match &program.steps[i].placement {
            Placement::Split(split) => split.clone(),
            _ => vec![Vec::new(); shapes[id].len()],
        };
        let input = Input { dims: shapes[id].clone(), kind: InputKind::Numbers, split };
        add(with_new_input(program, input, id));
        for &operand in &program.steps[i].operands {
            if shapes[operand] == shapes[id] {
                add(replaced(program, id, operand));
            }
        }
        if let Some(body) = body(&program.steps[i].op) {
            for removed in 0..body.steps.len() {
                let mut candidate = program.clone();
                if let Some(body) = body_mut(&mut candidate.steps[i].op) {
                    let first = program.steps[i].operands.len();
                    remove_inner(body, first, removed);
                }
                add(candidate);
            }
        }
    }
    candidates.extend(with_fewer_shardings(program));
    candidates
}

fn with_fewer_shardings(program: &Program) -> Vec<Program> {
    let mut candidates = Vec::new();
    for i in 0..program.inputs.len() {
        let mut candidate = program.clone();
        candidate.inputs[i].split = Vec::new();
        candidates.push(candidate);
        for axis in 0..program.inputs[i].split.len() {
            let mut candidate = program.clone();
            candidate.inputs[i].split[axis] = Vec::new();
            candidates.push(candidate);
        }
        let mut candidate = program.clone();
        candidate.inputs[i].kind = match program.inputs[i].kind {
            InputKind::ConstantIndices(below) => InputKind::Indices(below),
            InputKind::ConstantNumbers => InputKind::Numbers,
            kind => kind,
        };
        candidates.push(candidate);
    }
    for i in 0..program.steps.len() {
        let mut candidate = program.clone();
        candidate.steps[i].placement = Placement::Anywhere;
        candidates.push(candidate);
        if let Placement::Split(split) | Placement::Gathered(split) = &program.steps[i].placement {
            for axis in 0..split.len() {
                let mut split = split.clone();
                split[axis] = Vec::new();
                let mut candidate = program.clone();
                candidate.steps[i].placement = Placement::Split(split);
                candidates.push(candidate);
            }
        }
        let inner = body(&program.steps[i].op).map_or(0, |body| body.steps.len());
        for step in 0..inner {
            let mut candidate = program.clone();
            if let Some(body) = body_mut(&mut candidate.steps[i].op) {
                body.steps[step].placement = Placement::Anywhere;
            }
            candidates.push(candidate);
        }
    }
    candidates.push(Program { splits_gradients: false, ..program.clone() });
    let terms = program.terms.iter().map(|&(id, _)| (id, Weights::Ones)).collect();
    candidates.push(Program { terms, ..program.clone() });
    candidates
}

/// Removes a step of a body; its users get the value before it.
fn remove_inner(body: &mut Body, first: usize, removed: usize) {
    let id = first + removed;
    body.steps.remove(removed);
    for step in &mut body.steps {
        for operand in &mut step.operands {
            if *operand >= id && *operand > 0 {
                *operand -= 1;
            }
        }
    }
}

/// The program with value `id` replaced by `by`.
fn replaced(program: &Program, id: usize, by: usize) -> Program {
    let mut candidate = program.clone();
    let replace = |value: &mut usize| {
        if *value == id {
            *value = by;
        }
    };
    candidate.steps.iter_mut().for_each(|step| step.operands.iter_mut().for_each(replace));
    candidate.terms.iter_mut().for_each(|term| replace(&mut term.0));
    candidate.returned.iter_mut().for_each(replace);
    candidate
}

/// The program with a new input in the place of value `id`.
fn with_new_input(program: &Program, input: Input, id: usize) -> Program {
    let new = program.inputs.len();
    let mut candidate = program.clone();
    candidate.inputs.push(input);
    let shift = |value: &mut usize| {
        if *value >= new {
            *value += 1;
        }
    };
    candidate.steps.iter_mut().for_each(|step| step.operands.iter_mut().for_each(shift));
    candidate.terms.iter_mut().for_each(|term| shift(&mut term.0));
    candidate.returned.iter_mut().for_each(shift);
    replaced(&candidate, id + 1, new)
}

/// The program without the values that no result needs.
fn without_unused(program: Program) -> Program {
    let inputs = program.inputs.len();
    let mut used = vec![false; inputs + program.steps.len()];
    for &id in program.terms.iter().map(|term| &term.0).chain(&program.returned) {
        used[id] = true;
    }
    for (i, step) in program.steps.iter().enumerate().rev() {
        if used[inputs + i] {
            step.operands.iter().for_each(|&id| used[id] = true);
        }
    }
    let numbers: Vec<usize> = used
        .iter()
        .scan(0, |next, &is_used| {
            let number = *next;
            *next += usize::from(is_used);
            Some(number)
        })
        .collect();
    let mut kept = program.clone();
    let mut is_used = used.iter();
    kept.inputs.retain(|_| *is_used.next().unwrap());
    kept.steps.retain(|_| *is_used.next().unwrap());
    let renumber = |id: &mut usize| *id = numbers[*id];
    kept.steps.iter_mut().for_each(|step| step.operands.iter_mut().for_each(renumber));
    kept.terms.iter_mut().for_each(|term| renumber(&mut term.0));
    kept.returned.iter_mut().for_each(renumber);
    kept
}
