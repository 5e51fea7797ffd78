// Text that comes from programs (reprs, names of files and modules) in a form that a terminal and a file of lines bear.
#pragma once

#include <fmt/format.h>

#include <string_view>

namespace habana_mp::log {

// `text` where it is UTF-8, which is nearly always; else a copy in `scratch` with the offending bytes spelled out
// (\xed), so that one strange repr does not make the whole file unreadable.
std::string_view valid_utf8(std::string_view text, fmt::memory_buffer& scratch);

// The same, with what controls a terminal or ends a line spelled out (\n, \x1b, \u2028): control characters, the
// separators of lines and paragraphs, and the marks that turn the direction of text.
std::string_view printable(std::string_view text, fmt::memory_buffer& scratch);

// Appends UTF-8 as the inside of a string of JSON. It writes JSON's escapes for the characters that `printable` spells
// out.
void append_for_json(fmt::memory_buffer& out, std::string_view text);

}  // namespace habana_mp::log
