//! Dates in many written forms, each with the same date in ISO 8601: `sat 3 october 1987` and
//! `1987-10-03`.

use fulmen::data::SampleRng;

use crate::pairs::{Pair, Split};

const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];
const WEEKDAYS: [&str; 7] =
    ["sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"];

/// The pairs of a split. No date occurs in two splits, in any form.
pub(crate) fn pairs(split: Split) -> Vec<Pair> {
    let (count, seed) = match split {
        Split::Train => (40_000, 0),
        Split::Validation => (2_000, 1),
        Split::Test => (2_000, 2),
    };
    (0..count).map(|index| pair(split, &mut SampleRng::new(seed, 0, index))).collect()
}

fn pair(split: Split, random: &mut SampleRng) -> Pair {
    loop {
        let year = random.in_range(1900..2100);
        let month = random.in_range(1..13);
        let day = random.in_range(1..days(year, month) + 1);
        let date_split = match (372 * year + 31 * month + day) % 20 {
            0 => Split::Test,
            1 => Split::Validation,
            _ => Split::Train,
        };
        if date_split == split {
            return (write_date(year, month, day, random), format!("{year}-{month:02}-{day:02}"));
        }
    }
}

/// A date in a random written form.
fn write_date(year: usize, month: usize, day: usize, random: &mut SampleRng) -> String {
    let month_name = MONTHS[month - 1];
    let name = if random.bernoulli(0.5) { month_name } else { &month_name[..3] };
    let weekday_name = WEEKDAYS[weekday(year, month, day)];
    let comma = if random.bernoulli(0.5) { "," } else { "" };
    let weekday = match random.below(3) {
        0 => String::new(),
        1 => format!("{}{comma} ", &weekday_name[..3]),
        _ => format!("{weekday_name}{comma} "),
    };
    let number = match random.below(3) {
        0 => format!("{day}"),
        1 => format!("{day:02}"),
        _ => format!("{day}{}", ordinal(day)),
    };
    let text = match random.below(8) {
        0 => format!("{weekday}{number} {name} {year}"),
        1 => format!("{weekday}{name} {number}{comma} {year}"),
        2 => format!("{weekday}the {day}{} of {name}{comma} {year}", ordinal(day)),
        3 => format!("{day}.{month}.{year}"),
        4 => format!("{day:02}/{month:02}/{year}"),
        5 => format!("{year}/{month}/{day}"),
        6 => format!("{number}-{name}-{year}"),
        _ => format!("{year}{comma} {name} {number}"),
    };
    match random.below(3) {
        0 => text,
        1 => text.to_uppercase(),
        _ => capitalize(&text),
    }
}

/// Capitalizes each word.
fn capitalize(text: &str) -> String {
    let mut previous = ' ';
    let letters = text.chars().map(|letter| {
        let first = !previous.is_ascii_alphanumeric();
        previous = letter;
        if first { letter.to_ascii_uppercase() } else { letter }
    });
    letters.collect()
}

fn ordinal(day: usize) -> &'static str {
    match (day % 10, day / 10) {
        (1, tens) if tens != 1 => "st",
        (2, tens) if tens != 1 => "nd",
        (3, tens) if tens != 1 => "rd",
        _ => "th",
    }
}

fn days(year: usize, month: usize) -> usize {
    match month {
        2 if year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400)) => {
            29
        }
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// The day of the week, 0 for Sunday, by Sakamoto's method.
fn weekday(year: usize, month: usize, day: usize) -> usize {
    let year = if month < 3 { year - 1 } else { year };
    (year + year / 4 - year / 100
        + year / 400
        + [0, 3, 2, 5, 0, 3, 5, 1, 4, 6, 2, 4][month - 1]
        + day)
        % 7
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_correct_and_splits_share_none() {
        assert_eq!((weekday(1987, 10, 3), weekday(2000, 2, 29), weekday(1900, 1, 1)), (6, 2, 1));
        assert_eq!([1900, 2000, 2023, 2024].map(|year| days(year, 2)), [28, 29, 28, 29]);
        assert_eq!(
            [1, 2, 3, 11, 12, 13, 22, 30].map(ordinal),
            ["st", "nd", "rd", "th", "th", "th", "nd", "th"]
        );
        assert_eq!(capitalize("sat the 3rd-oct 1987"), "Sat The 3rd-Oct 1987");
        let [train, test] = [Split::Train, Split::Test].map(pairs);
        assert!(test.iter().all(|(text, date)| text.contains(&date[..4])));
        let train_dates: std::collections::HashSet<&String> =
            train.iter().map(|(_, date)| date).collect();
        assert!(
            train_dates.len() > 20_000 && test.iter().all(|(_, date)| !train_dates.contains(date))
        );
    }
}
