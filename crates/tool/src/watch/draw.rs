//! Draws a [`Sample`] on the terminal.

use std::time::Duration;

use crate::rate::Rate;
use crate::size::Size;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Gauge, Paragraph, Row, Sparkline, Table};

use super::sample::{ConnectionSample, Memory, QueueSample, Sample};

/// Lines of the history of the rate.
const HISTORY_LINES: u16 = 3;
/// Lines of messages at the bottom.
const MESSAGE_LINES: u16 = 4;

/// Draws the whole screen.
pub fn draw(frame: &mut Frame<'_>, sample: &Sample) {
    let has_memory = u16::from(sample.memory.is_some());
    let queue_lines = sample.queues.len().min(8) as u16 + 1;
    let [top, history, progress, memory, queues, connections, bottom] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(HISTORY_LINES),
        Constraint::Length(1),
        Constraint::Length(3 * has_memory),
        Constraint::Length((queue_lines + 1) * has_memory),
        Constraint::Min(3),
        Constraint::Length(MESSAGE_LINES + 1),
    ])
    .areas(frame.area());
    draw_top(frame, top, sample);
    let rates = Sparkline::default()
        .data(newest(&sample.history, history.width))
        .style(Color::Cyan);
    frame.render_widget(rates, history);
    draw_progress(frame, progress, sample);
    if let Some(bound) = &sample.memory {
        draw_memory(frame, memory, bound, &sample.queues);
        draw_queues(frame, queues, &sample.queues);
    }
    draw_connections(frame, connections, sample);
    draw_messages(frame, bottom, sample);
}

/// Returns the last values, as many as there are columns.
fn newest(history: &[u64], columns: u16) -> &[u64] {
    let surplus = history.len().saturating_sub(usize::from(columns));
    history.get(surplus..).unwrap_or_default()
}

fn draw_top(frame: &mut Frame<'_>, area: Rect, sample: &Sample) {
    let Sample {
        title,
        bytes,
        elapsed,
        average,
        rate,
        ..
    } = sample;
    let title = Line::from(vec![
        "devmem-tcp ".bold(),
        title.as_str().into(),
        "   q ends".dim(),
    ]);
    let now = Line::from(vec![
        Span::styled(Rate(*rate).to_string(), Style::new().bold()),
        format!(
            " now, {} on average, {} in {}",
            Rate::of(*bytes, *average),
            Size(*bytes),
            seconds(*elapsed)
        )
        .into(),
    ]);
    frame.render_widget(Paragraph::new(vec![title, now]), area);
}

fn draw_progress(frame: &mut Frame<'_>, area: Rect, sample: &Sample) {
    let Some(total) = sample.total.filter(|total| *total > 0) else {
        return;
    };
    let share = sample.bytes.min(total) as f64 / total as f64;
    let gauge = Gauge::default()
        .ratio(share)
        .label(format!("{:.0} % of {}", share * 100.0, Size(total)))
        .gauge_style(Color::Blue);
    frame.render_widget(gauge, area);
}

/// Draws where the net_iovs are, and the tokens.
fn draw_memory(frame: &mut Frame<'_>, area: Rect, memory: &Memory, queues: &[QueueSample]) {
    let Memory {
        niov_bytes,
        total,
        home,
        tokens_lent,
        tokens_returned,
    } = *memory;
    let away = total.saturating_sub(home);
    let pools = queues.iter().filter(|queue| queue.is_bound());
    let pools = pools.filter_map(|queue| queue.stats.pool);
    let in_use: Option<u64> = pools.map(|pool| pool.in_use).reduce(|a, b| a + b);
    let places = match in_use.map(|in_use| in_use.min(away)) {
        Some(in_use) => format!(
            "{home} free, {} in page pools, {in_use} in packets or lent",
            away - in_use
        ),
        None => format!("{home} free, {away} in page pools, packets or lent"),
    };
    let net_iovs = format!("net_iovs  {total} of {}: {places}", Size(niov_bytes));
    let tokens = format!("tokens    {tokens_lent} lent, {tokens_returned} returned");
    let [text, bar] = Layout::vertical([Constraint::Length(2), Constraint::Length(1)]).areas(area);
    frame.render_widget(
        Paragraph::new(vec![Line::from(net_iovs), Line::from(tokens)]),
        text,
    );
    let share = away as f64 / total.max(1) as f64;
    let gauge = Gauge::default()
        .ratio(share.clamp(0.0, 1.0))
        .label(format!("{:.0} % of the memory in use", share * 100.0))
        .gauge_style(Color::Green);
    frame.render_widget(gauge, bar);
}

fn draw_queues(frame: &mut Frame<'_>, area: Rect, queues: &[QueueSample]) {
    let rows = queues.iter().map(|queue| {
        let QueueSample { stats, rate } = queue;
        let count = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |n| n.to_string());
        Row::new([
            stats.queue.0.to_string(),
            stats.packets.to_string(),
            count(stats.split_packets),
            short(stats.bytes),
            format!("{:.1}", rate / 1e9),
            count(stats.pool.map(|pool| pool.held)),
            count(stats.pool.map(|pool| pool.in_use)),
            count(stats.pool.map(|pool| pool.recycled)),
        ])
    });
    let columns = [
        ("queue", 5),
        ("packets", 9),
        ("split", 9),
        ("bytes", 10),
        ("Gbit/s", 6),
        ("pool has", 8),
        ("in use", 6),
        ("recycled", 9),
    ];
    frame.render_widget(table(rows, columns), area);
}

fn draw_connections(frame: &mut Frame<'_>, area: Rect, sample: &Sample) {
    let connections = sample.connections.iter();
    let table = match sample.memory {
        Some(_) => {
            let columns = [
                ("peer", 21),
                ("state", 11),
                ("bytes", 10),
                ("Gbit/s", 6),
                ("window", 10),
                ("rtt ms", 6),
                ("resent", 6),
            ];
            table(connections.map(receiving), columns)
        }
        None => {
            let columns = [
                ("peer", 21),
                ("bytes", 10),
                ("Gbit/s", 6),
                ("window", 10),
                ("cwnd", 10),
                ("rtt ms", 6),
                ("resent", 6),
                ("chunks", 6),
            ];
            table(connections.map(sending), columns)
        }
    };
    frame.render_widget(table, area);
    if sample.connections.is_empty() {
        let below = Rect {
            y: area.y + 2.min(area.height),
            height: area.height.saturating_sub(2).min(1),
            ..area
        };
        frame.render_widget(Paragraph::new("no open connection").dim(), below);
    }
}

/// Returns the row of a connection that receives.
fn receiving(connection: &ConnectionSample) -> Row<'_> {
    Row::new([
        connection.peer.to_string(),
        connection.state.clone(),
        short(connection.bytes),
        format!("{:.1}", connection.rate / 1e9),
        short(connection.window),
        milliseconds(connection.rtt),
        connection.retransmitted.to_string(),
    ])
}

/// Returns the row of a connection that sends.
fn sending(connection: &ConnectionSample) -> Row<'_> {
    let chunks = connection.chunks.map(|(used, all)| format!("{used}/{all}"));
    Row::new([
        connection.peer.to_string(),
        short(connection.bytes),
        format!("{:.1}", connection.rate / 1e9),
        short(connection.window),
        connection.congestion_window.map(short).unwrap_or_default(),
        milliseconds(connection.rtt),
        connection.retransmitted.to_string(),
        chunks.unwrap_or_default(),
    ])
}

/// Returns a table with a line above it; columns have a name and a width.
fn table<'a, const N: usize>(
    rows: impl Iterator<Item = Row<'a>>,
    columns: [(&'static str, u16); N],
) -> Table<'a> {
    Table::new(rows, columns.map(|(_, width)| Constraint::Length(width)))
        .header(Row::new(columns.map(|(name, _)| name)).dim())
        .block(Block::new().borders(Borders::TOP))
}

/// Draws the counters of packets and the last messages.
fn draw_messages(frame: &mut Frame<'_>, area: Rect, sample: &Sample) {
    let mut lines = Vec::new();
    if let Some(tx) = sample.tx {
        lines.push(Line::from(format!(
            "sent      {} packets as {} frames, the link was busy {} times",
            tx.packets, tx.frames, tx.busy
        )));
    }
    if !sample.drops.is_empty() {
        let drops = sample.drops.iter();
        let drops: Vec<_> = drops.map(|(reason, n)| format!("{n} {reason}")).collect();
        lines.push(Line::from(format!("not delivered  {}", drops.join(", "))));
    }
    let room = usize::from(MESSAGE_LINES).saturating_sub(lines.len());
    let surplus = sample.messages.len().saturating_sub(room);
    let last = sample.messages.get(surplus..).unwrap_or_default();
    lines.extend(last.iter().map(|message| Line::from(message.as_str())));
    let messages = Paragraph::new(lines).block(Block::new().borders(Borders::TOP));
    frame.render_widget(messages, area);
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

fn milliseconds(time: Duration) -> String {
    format!("{:.2}", time.as_secs_f64() * 1e3)
}

/// Returns a size in at most ten characters.
fn short(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let mut size = bytes as f64;
    let mut unit = "B";
    for larger in UNITS {
        if size < 1024.0 {
            break;
        }
        size /= 1024.0;
        unit = larger;
    }
    match unit {
        "B" => format!("{bytes} B"),
        _ => format!("{size:.1} {unit}"),
    }
}
