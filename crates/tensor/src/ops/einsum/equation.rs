//! Parses an equation in Einstein notation and matches it to operands. Error messages point at the
//! wrong character.

use std::collections::HashMap;

use fulmen_durable::messages::quantity;

use crate::Shape;

/// A label of the equation: an index into [`Equation::sizes`].
pub(super) type Label = usize;

/// An equation that matches its operands.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Equation {
    /// For each operand, one label for each axis.
    pub(super) operands: Vec<Vec<Label>>,
    pub(super) result: Vec<Label>,
    /// The size of each label: the size of all its axes that are not 1.
    pub(super) sizes: Vec<usize>,
}

/// One list of labels: the letters and the `...`, with their positions in the text.
#[derive(Default)]
struct Term {
    letters: Vec<(char, usize)>,
    /// The number of letters before `...`, and its position.
    ellipsis: Option<(usize, usize)>,
    /// The position of the end of the term.
    end: usize,
}

/// `message`, then the equation with a mark under the character at `position`.
fn pointing(text: &str, position: usize, message: impl AsRef<str>) -> String {
    format!("{}\n  {text}\n  {}^", message.as_ref(), " ".repeat(position))
}

/// The terms of the operands, and the term of the result if there is one.
fn terms(text: &str) -> Result<(Vec<Term>, Option<Term>), String> {
    let characters: Vec<char> = text.chars().collect();
    let mut operands = Vec::new();
    let mut term = Term::default();
    let mut in_result = false;
    let mut i = 0;
    while let Some(&c) = characters.get(i) {
        match c {
            ' ' => {}
            ',' if in_result => return Err(pointing(text, i, "there can be only one result")),
            ',' => {
                term.end = i;
                operands.push(std::mem::take(&mut term));
            }
            '-' if characters.get(i + 1) == Some(&'>') => {
                if in_result {
                    return Err(pointing(text, i, "there can be only one arrow"));
                }
                term.end = i;
                operands.push(std::mem::take(&mut term));
                in_result = true;
                i += 1;
            }
            '.' if characters.get(i..i + 3) == Some(&['.'; 3]) => {
                if term.ellipsis.is_some() {
                    return Err(pointing(text, i, "a list of labels can have only one `...`"));
                }
                term.ellipsis = Some((term.letters.len(), i));
                i += 2;
            }
            c if c.is_ascii_alphabetic() => term.letters.push((c, i)),
            c => {
                return Err(pointing(
                    text,
                    i,
                    format!("{c:?} is not a letter, `,`, `...` or `->`"),
                ));
            }
        }
        i += 1;
    }
    term.end = characters.len();
    if in_result {
        Ok((operands, Some(term)))
    } else {
        operands.push(term);
        Ok((operands, None))
    }
}

impl Equation {
    /// Parses `text` for operands of these shapes.
    pub(super) fn read(text: &str, shapes: &[&Shape]) -> Result<Equation, String> {
        let (terms, result) = terms(text)?;
        if terms.len() != shapes.len() {
            let position = terms.last().map_or(0, |term| term.end);
            let message = format!(
                "the equation has {}, but {} were given",
                quantity(terms.len(), "operand"),
                shapes.len()
            );
            return Err(pointing(text, position, message));
        }
        let mut names: HashMap<char, Label> = HashMap::new();
        // The unlabeled axes get the first labels, as many as any operand has. They are aligned
        // from the last.
        let unnamed = |term: &Term, shape: &Shape| shape.rank().saturating_sub(term.letters.len());
        let with_ellipsis = terms.iter().zip(shapes).filter(|(term, _)| term.ellipsis.is_some());
        let unlabeled = with_ellipsis.map(|(term, shape)| unnamed(term, shape)).max().unwrap_or(0);
        let mut sizes = vec![1; unlabeled];
        let mut operands = Vec::new();
        for (n, (term, shape)) in terms.iter().zip(shapes).enumerate() {
            let enough = match term.ellipsis {
                Some(_) => term.letters.len() <= shape.rank(),
                None => term.letters.len() == shape.rank(),
            };
            if !enough {
                let least = if term.ellipsis.is_some() { "at least " } else { "" };
                let message = format!(
                    "operand {n} has {} axes, {shape}, but the equation labels {least}{}",
                    shape.rank(),
                    term.letters.len()
                );
                return Err(pointing(
                    text,
                    term.letters.first().map_or(term.end, |l| l.1),
                    message,
                ));
            }
            let mut axes: Vec<(Label, usize)> = Vec::new();
            for &(letter, position) in &term.letters {
                let label = *names.entry(letter).or_insert_with(|| {
                    sizes.push(1);
                    sizes.len() - 1
                });
                axes.push((label, position));
            }
            if let Some((before, position)) = term.ellipsis {
                let count = unnamed(term, shape);
                axes.splice(
                    before..before,
                    (unlabeled - count..unlabeled).map(|label| (label, position)),
                );
            }
            for (&(label, position), &size) in axes.iter().zip(shape.iter()) {
                match sizes[label] {
                    known if known == size || size == 1 => {}
                    1 => sizes[label] = size,
                    known => {
                        let message = format!(
                            "this axis of operand {n}, {shape}, has {size} elements, but elsewhere the label has \
                             {known}"
                        );
                        return Err(pointing(text, position, message));
                    }
                }
            }
            operands.push(axes.into_iter().map(|axis| axis.0).collect());
        }
        let result = match result {
            Some(result) => explicit_result(text, &result, &names, unlabeled)?,
            None => implicit_result(&terms, &names, unlabeled),
        };
        Ok(Equation { operands, result, sizes })
    }
}

/// The labels of an explicit result.
fn explicit_result(
    text: &str,
    term: &Term,
    names: &HashMap<char, Label>,
    unnamed: usize,
) -> Result<Vec<Label>, String> {
    let mut result = Vec::new();
    for &(letter, position) in &term.letters {
        match names.get(&letter) {
            Some(label) if result.contains(label) => {
                return Err(pointing(
                    text,
                    position,
                    format!("the label {letter:?} is in the result twice"),
                ));
            }
            Some(&label) => result.push(label),
            None => {
                return Err(pointing(
                    text,
                    position,
                    format!("the label {letter:?} of the result does not occur in any operand"),
                ));
            }
        }
    }
    if let Some((before, _)) = term.ellipsis {
        result.splice(before..before, 0..unnamed);
    }
    Ok(result)
}

/// The labels of an implicit result.
fn implicit_result(terms: &[Term], names: &HashMap<char, Label>, unnamed: usize) -> Vec<Label> {
    let mut once: Vec<char> =
        terms.iter().flat_map(|term| term.letters.iter().map(|l| l.0)).collect();
    once.sort_unstable();
    let all = once.clone();
    once.retain(|c| all.iter().filter(|d| *d == c).count() == 1);
    (0..unnamed).chain(once.iter().filter_map(|c| names.get(c).copied())).collect()
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn fault(text: &str, shapes: &[&[usize]]) -> String {
        let shapes: Vec<Shape> = shapes.iter().map(|&s| Shape::from(s)).collect();
        Equation::read(text, &shapes.iter().collect::<Vec<_>>()).unwrap_err()
    }

    #[test]
    fn unnamed_axes_come_first_and_a_missing_result_is_in_alphabetical_order() {
        let a = Shape::from([7, 2, 3]);
        let b = Shape::from([3, 2]);
        let read = Equation::read("...ba, ac", &[&a, &b]).unwrap();
        assert_eq!(read.operands, [vec![0, 1, 2], vec![2, 3]]);
        assert_eq!((read.result, read.sizes), (vec![0, 1, 3], vec![7, 2, 3, 2]));
    }

    #[test]
    fn faults_point_into_the_equation() {
        let faults = [
            fault("ij,jk->iz", &[&[2, 3], &[3, 4]]),
            fault("ij,jk->ikk", &[&[2, 3], &[3, 4]]),
            fault("ij,jk->ik", &[&[2, 3], &[4, 4]]),
            fault("ij,jk->ik", &[&[2, 3]]),
            fault("i1->i", &[&[2, 3]]),
            fault("ijk->i", &[&[2, 3]]),
            fault("...ijk->i", &[&[2, 3]]),
            fault("i...j...->i", &[&[2, 3]]),
            fault("ij->i->j", &[&[2, 3]]),
            fault("ij->i,j", &[&[2, 3]]),
            fault("é", &[&[2]]),
        ];
        expect![[r#"
            the label 'z' of the result does not occur in any operand
              ij,jk->iz
                      ^
            the label 'k' is in the result twice
              ij,jk->ikk
                       ^
            this axis of operand 1, [4, 4], has 4 elements, but elsewhere the label has 3
              ij,jk->ik
                 ^
            the equation has 2 operands, but 1 were given
              ij,jk->ik
                   ^
            '1' is not a letter, `,`, `...` or `->`
              i1->i
               ^
            operand 0 has 2 axes, [2, 3], but the equation labels 3
              ijk->i
              ^
            operand 0 has 2 axes, [2, 3], but the equation labels at least 3
              ...ijk->i
                 ^
            a list of labels can have only one `...`
              i...j...->i
                   ^
            there can be only one arrow
              ij->i->j
                   ^
            there can be only one result
              ij->i,j
                   ^
            'é' is not a letter, `,`, `...` or `->`
              é
              ^"#]]
        .assert_eq(&faults.join("\n"));
    }
}
