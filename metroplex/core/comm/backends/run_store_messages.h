// Messages between StoreServer and StoreClient.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace metroplex::comm {

inline constexpr size_t kMaxStoreMessage = 16 << 20;
// Requests: set {key, value}, get {key}, compare {key, expected, desired}, add {key, amount}, delete {key},
// check {keys...}, count {}. The answer has the request's letter: set {}, get {value} or {}, compare {value},
// add {sum}, delete and check {"1"} or {"0"}, count {number}. stay {}: the client remains after the start.
inline constexpr char kSet = 's', kGet = 'g', kCompare = 'c', kAdd = 'a', kDelete = 'd', kCheck = 'k', kCount = '#',
                      kStay = 'j';
// The server sends kRefusal with the reason instead of kWelcome before it closes the connection. An empty reason: the
// client proved another secret.
inline constexpr char kRefusal = 'x';

inline std::string pack(const std::vector<std::string>& fields) {
  std::string text;
  for (const std::string& field : fields) {
    for (int shift = 0; shift < 32; shift += 8) text += static_cast<char>(field.size() >> shift & 0xff);
    text += field;
  }
  return text;
}

inline std::optional<std::vector<std::string>> unpack(const std::string& text) {
  std::vector<std::string> fields;
  for (size_t at = 0; at < text.size();) {
    if (text.size() - at < 4) return std::nullopt;
    size_t length = 0;
    for (size_t byte = 0; byte < 4; ++byte)
      length |= static_cast<size_t>(static_cast<unsigned char>(text[at + byte])) << 8 * byte;
    at += 4;
    if (text.size() - at < length) return std::nullopt;
    fields.push_back(text.substr(at, length));
    at += length;
  }
  return fields;
}

// The text that an end proves. `end` is "client" or "server", so a proof cannot be replayed for the other end.
inline std::string store_claim(const char* end, const std::string& server_nonce, const std::string& client_nonce) {
  return std::string("store ") + end + " " + server_nonce + " " + client_nonce;
}

}  // namespace metroplex::comm
