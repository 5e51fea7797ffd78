#include "log/printable.hpp"

#include <fmt/compile.h>

#include <algorithm>
#include <cstddef>
#include <iterator>

namespace habana_mp::log {

namespace {

constexpr bool is_plain(char c) { return c >= 0x20 && c < 0x7F; }

// Returns the length of the UTF-8 sequence that begins with this byte. The text is Python's, so it is valid, but it may
// contain lone surrogates, which have three bytes.
constexpr std::size_t sequence_length(char begin) {
  const auto first = static_cast<unsigned char>(begin);
  return first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

// Returns the code point of a whole UTF-8 sequence.
constexpr char32_t code_point(std::string_view sequence) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(sequence[i]); };
  switch (sequence.size()) {
    case 1:
      return byte(0);
    case 2:
      return (byte(0) & 0x1FU) << 6U | (byte(1) & 0x3FU);
    case 3:
      return (byte(0) & 0x0FU) << 12U | (byte(1) & 0x3FU) << 6U | (byte(2) & 0x3FU);
    default:
      return (byte(0) & 0x07U) << 18U | (byte(1) & 0x3FU) << 12U | (byte(2) & 0x3FU) << 6U | (byte(3) & 0x3FU);
  }
}

constexpr bool controls(char32_t c) {
  const bool is_control = c < 0x20 || (c >= 0x7F && c <= 0x9F);
  const bool is_surrogate = c >= 0xD800 && c <= 0xDFFF;
  const bool ends_line = c == 0x2028 || c == 0x2029;
  const bool turns_text = c == 0x061C || c == 0x200E || c == 0x200F || (c >= 0x202A && c <= 0x202E) ||
                          (c >= 0x2066 && c <= 0x2069) || c == 0xFEFF;
  return is_control || is_surrogate || ends_line || turns_text;
}

// Returns the letter of a short escape, or 0.
constexpr char short_escape(char32_t c) {
  switch (c) {
    case '\n':
      return 'n';
    case '\r':
      return 'r';
    case '\t':
      return 't';
    default:
      return '\0';
  }
}

void append_short_escape(fmt::memory_buffer& out, char letter) {
  out.push_back('\\');
  out.push_back(letter);
}

// Removes the first sequence from the text, and returns it.
std::string_view take_sequence(std::string_view& text) {
  const std::string_view sequence = text.substr(0, sequence_length(text.front()));
  text.remove_prefix(sequence.size());
  return sequence;
}

}  // namespace

std::string_view printable(std::string_view text, fmt::memory_buffer& scratch) {
  if (std::all_of(text.begin(), text.end(), is_plain)) return text;
  while (!text.empty()) {
    const std::string_view sequence = take_sequence(text);
    const char32_t c = code_point(sequence);
    if (!controls(c)) {
      scratch.append(sequence);
    } else if (short_escape(c) != 0) {
      append_short_escape(scratch, short_escape(c));
    } else if (c <= 0xFF) {
      fmt::format_to(std::back_inserter(scratch), FMT_COMPILE("\\x{:02x}"), static_cast<unsigned>(c));
    } else {
      fmt::format_to(std::back_inserter(scratch), FMT_COMPILE("\\u{:04x}"), static_cast<unsigned>(c));
    }
  }
  return {scratch.data(), scratch.size()};
}

void append_for_json(fmt::memory_buffer& out, std::string_view text) {
  while (!text.empty()) {
    const std::string_view sequence = take_sequence(text);
    const char32_t c = code_point(sequence);
    if (c == '"' || c == '\\') {
      append_short_escape(out, static_cast<char>(c));
    } else if (!controls(c)) {
      out.append(sequence);
    } else if (short_escape(c) != 0) {
      append_short_escape(out, short_escape(c));
    } else {
      fmt::format_to(std::back_inserter(out), FMT_COMPILE("\\u{:04x}"), static_cast<unsigned>(c));
    }
  }
}

}  // namespace habana_mp::log
