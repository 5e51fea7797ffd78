// Makes text from programs (reprs, names of files and modules) safe for a terminal and for a file of lines.
#pragma once

#include <fmt/format.h>

#include <string_view>

namespace habana_mp::log {

// Returns the text with whatever controls a terminal or ends a line (\n, \x1b, \u2028) escaped: control characters,
// separators of lines and paragraphs, marks that change the direction of text, and lone surrogates. A changed text is
// in `scratch`.
std::string_view printable(std::string_view text, fmt::memory_buffer& scratch);

// Appends UTF-8 as the inside of a JSON string. Writes JSON's escapes for the characters that `printable` escapes.
void append_for_json(fmt::memory_buffer& out, std::string_view text);

}  // namespace habana_mp::log
