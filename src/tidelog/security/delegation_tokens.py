"""Delegation tokens (KIP-48): the secret of a token follows from its id and the secret of the cluster."""

import base64
import hmac


def token_hmac(secret: str, token_id: str) -> bytes:
    """What whoever has the token shows; the base64 of it is its password under SCRAM."""
    return hmac.digest(secret.encode(), token_id.encode(), "sha512")


def token_password(secret: str, token_id: str) -> str:
    """The password that goes with the token's id as user name."""
    return base64.b64encode(token_hmac(secret, token_id)).decode()
