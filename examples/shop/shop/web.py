"""The shop's web application."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from shop.images import thumbnail
from shop.mail import confirm
from shop.orders import Order, create_tables, new_session


class NewOrder(BaseModel):
    email: str
    picture: str


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    create_tables()
    yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
def place_order(new: NewOrder) -> dict[str, str]:
    """Store an order and enqueue its jobs in one transaction: all of them, or nothing."""
    with new_session() as session, session.begin():
        order = Order(email=new.email, picture=new.picture)
        session.add(order)
        session.flush()
        mail = confirm.using(connection=session).enqueue(order.id, new.email)
        picture = thumbnail.using(connection=session).enqueue(new.picture)
        if "@" not in new.email:
            raise HTTPException(422, "email: an address has an @")  # rolls back the order and both jobs
        return {"order": str(order.id), "mail": str(mail.id), "picture": str(picture.id)}
