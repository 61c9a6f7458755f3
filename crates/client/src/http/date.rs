//! The dates of HTTP (RFC 9110 5.6.7), in the form that all servers send today.

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// Returns the seconds since the year 0 of a date such as `Sun, 06 Nov 1994 08:49:37 GMT`, for differences; `None` if it has another
/// form.
#[inline]
pub(crate) fn seconds(text: &str) -> Option<u64> {
    let fields: Vec<_> = text.split(' ').collect();
    let [_weekday, day, month, year, time, "GMT"] = fields[..] else {
        return None;
    };
    let number = |text: &str, digits: usize| {
        let is_one = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
        is_one.then(|| text.parse::<u64>().ok())?
    };
    let (day, year) = (number(day, 2)?, number(year, 4)?);
    let month = MONTHS.iter().position(|name| *name == month)? as u64;
    let clock: Vec<_> = time.split(':').collect();
    let [hours, minutes, seconds] = clock[..] else {
        return None;
    };
    let (hours, minutes, seconds) = (number(hours, 2)?, number(minutes, 2)?, number(seconds, 2)?);
    let is_one = (1..=31).contains(&day) && hours < 24 && minutes < 60 && seconds <= 60;
    // A year begins with March here, so that the day of a leap year is its last one.
    let (year, month) = match month {
        0 | 1 => (year.checked_sub(1)?, month + 10),
        month => (year, month - 2),
    };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day;
    is_one.then_some(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_of_dates_are_those_of_the_calendar() {
        let day = 24 * 3600;
        for (from, to, difference) in [
            (
                "Sun, 06 Nov 1994 08:49:37 GMT",
                "Sun, 06 Nov 1994 08:50:07 GMT",
                30,
            ),
            (
                "Thu, 01 Jan 1970 00:00:00 GMT",
                "Fri, 24 May 2013 00:00:00 GMT",
                1_369_353_600,
            ),
            (
                "Mon, 28 Feb 2000 00:00:00 GMT",
                "Wed, 01 Mar 2000 00:00:00 GMT",
                2 * day,
            ),
            (
                "Sun, 28 Feb 2100 00:00:00 GMT",
                "Mon, 01 Mar 2100 00:00:00 GMT",
                day,
            ),
            (
                "Fri, 31 Dec 1999 23:59:60 GMT",
                "Sat, 01 Jan 2000 00:00:00 GMT",
                0,
            ),
        ] {
            let since = seconds(to).unwrap() - seconds(from).unwrap();
            assert_eq!(since, difference, "{from} to {to}");
        }
    }

    #[test]
    fn other_texts_are_no_dates() {
        for text in [
            "",
            "30",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:37 CET",
            "Sun, 6 Nov 1994 08:49:37 GMT",
            "Sun, 00 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 24:49:37 GMT",
            "Sun, 06 Nov 1994 08:49 GMT",
            "Sun, 06 Bru 1994 08:49:37 GMT",
            "Sun, 06 Nov +994 08:49:37 GMT",
            "Sun, 01 Jan 0000 00:00:00 GMT",
        ] {
            assert_eq!(seconds(text), None, "{text}");
        }
    }
}
