// Watching what NumPy's arrays of a weight's memory hand on: an array holds that memory itself, which is counted, but
// its address or a buffer of it may outlive the array.
#pragma once

namespace habana_mp::weights {

// Does nothing where NumPy's arrays are not made as known: then they are not watched.
void watch_arrays() noexcept;
void stop_watching_arrays() noexcept;
bool arrays_are_watched() noexcept;

}  // namespace habana_mp::weights
