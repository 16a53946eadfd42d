/* Sends and receives bytes through a socket, plain or with TLS. Both return 0 when a non-blocking socket
 * would block. */
#ifndef TRANSPORT_H
#define TRANSPORT_H

#include <stddef.h>
#include <stdint.h>

struct piece { /* the layout of struct iovec, with const */
    const uint8_t *data;
    size_t size;
};

void *start_tls(int socket); /* after the handshake; certificates are not checked */
size_t send_pieces(int socket, void *tls, const struct piece *pieces, int count);
size_t receive_bytes(int socket, void *tls, uint8_t *data, size_t size);

#endif
