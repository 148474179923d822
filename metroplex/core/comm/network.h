// Network interfaces, addresses and sockets of this machine.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace metroplex::comm {

struct Interface {
  std::string name;     // "eth0"
  std::string address;  // numeric
};
// Returns the interfaces that are up, including the loopback, each with its first IPv4 address, else its first IPv6
// address.
std::vector<Interface> network_interfaces();

// Returns the addresses of `names` ("eth0" or "eth0,eth1"). Throws base::Error("config") with `source` (a key or
// variable), the unknown name and the existing names.
std::vector<std::string> interface_addresses(const std::string& names, const std::string& source);

// Returns the local address of the route to `master`. Some hosts resolve their own name to 127.0.1.1, which other
// machines cannot reach. If the route uses the loopback and `multi_machine` is true (ranks on other machines),
// returns the first other address.
std::string route_address(const std::string& master, bool multi_machine);

bool is_loopback(const std::string& host);

// Returns why `host` cannot be resolved, or "" if it can. Retries for `patience`, because a name server may learn of
// a machine after its ranks have started.
std::string resolve_error(const std::string& host, std::chrono::milliseconds patience);

// Raises RLIMIT_NOFILE to its hard limit. Throws base::Error("config") if that is less than a rank of `world_size`
// ranks opens over gloo.
void raise_file_limit(int64_t world_size);

std::string host_name();

// Returns a socket that listens at the numeric `address`, and its port.
std::pair<int, uint16_t> listen_at(const std::string& address);
// Returns a connected socket, or -1 with `error` set.
int connect_to(const std::string& address, uint16_t port, std::chrono::milliseconds timeout, std::string& error);
// Returns the numeric address of the peer; empty if there is none.
std::string peer_address(int fd);
// Listens on `port` of the first address of `host` that belongs to this machine. Listens on all addresses if none
// does (address translation), or if `multi_machine` (ranks on other machines) could not reach a loopback name. Throws
// base::Error("comm").
int listen_at_name(const std::string& host, uint16_t port, bool multi_machine);
// Connects to the first address of `host` that accepts on `port`. Retries for `timeout`, then returns -1 with the
// last error in `error`.
int connect_by_name(const std::string& host, uint16_t port, std::chrono::milliseconds timeout, std::string& error);
// Sets TCP_NODELAY and non-blocking mode. The kernel closes the connection to a silent machine after `silence`.
void prepare_socket(int fd, std::chrono::seconds silence);

}  // namespace metroplex::comm
