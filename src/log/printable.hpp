// Makes text from programs (reprs, names of files and modules) safe for a terminal and for a file of lines.
#pragma once

#include <fmt/format.h>

#include <string_view>

namespace habana_mp::log {

// Returns `text` if it is valid UTF-8, which is nearly always so. Otherwise returns a copy in `scratch` with the
// invalid bytes escaped (\xed), so that one unusual repr does not make the whole file unreadable.
std::string_view valid_utf8(std::string_view text, fmt::memory_buffer& scratch);

// Like `valid_utf8`, but also escapes whatever controls a terminal or ends a line (\n, \x1b, \u2028): control
// characters, separators of lines and paragraphs, and marks that change the direction of text.
std::string_view printable(std::string_view text, fmt::memory_buffer& scratch);

// Appends UTF-8 as the inside of a JSON string. Writes JSON's escapes for the characters that `printable` escapes.
void append_for_json(fmt::memory_buffer& out, std::string_view text);

}  // namespace habana_mp::log
