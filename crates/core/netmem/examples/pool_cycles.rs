//! Prints what a page pool takes per element, in nanoseconds and TSC cycles.
#![forbid(unsafe_code)]

use netmem::pool_bench::{self, BenchConfig, BenchError};

fn main() -> Result<(), BenchError> {
    let rows = pool_bench::run(BenchConfig::default())?;
    let ghz = pool_bench::tsc_hz().map(|hz| hz / 1e9);
    println!(
        "{:<12} {:<8} {:>9} {:>18} {:>8}",
        "case", "memory", "ns median", "[min-max]", "cycles"
    );
    for row in rows {
        let cycles = ghz.map_or("-".to_owned(), |ghz| format!("{:.1}", row.median_ns * ghz));
        let spread = format!("[{:.2}-{:.2}]", row.min_ns, row.max_ns);
        println!(
            "{:<12} {:<8} {:>9.2} {spread:>18} {cycles:>8}",
            row.case.to_string(),
            row.memory.to_string(),
            row.median_ns
        );
    }
    Ok(())
}
