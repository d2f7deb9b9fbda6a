//! Days, as chat templates tell them.

use jiff::civil::Date;
use jiff::{Timestamp, Unit, Zoned};

/// Today, where this machine is, as `YYYY-MM-DD`.
pub fn today() -> String {
    Zoned::now().date().to_string()
}

/// Now, to the second, in UTC, as `YYYY-MM-DDThh:mm:ssZ`.
pub fn now() -> String {
    let now = Timestamp::now();
    // Only the end of time can't be rounded.
    now.round(Unit::Second).unwrap_or(now).to_string()
}

/// Whether a text is a day of the calendar, written `YYYY-MM-DD`.
pub fn is_date(text: &str) -> bool {
    // The parser also takes times and shorter forms; what it prints is the one form.
    text.parse::<Date>().is_ok_and(|date| date.to_string() == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_days_of_the_calendar_are_dates() {
        assert!(is_date(&today()) && is_date("2024-02-29"));
        for wrong in ["2023-02-29", "20240229", "2024-02-29T10:00", "2024-2-9", "", "today"] {
            assert!(!is_date(wrong), "{wrong}");
        }
    }
}
